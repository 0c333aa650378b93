/* golden.h - where the golden tests find their data, and JSON lines as a list. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/str.h"
#include "model/tokenizer.h"

#define GOLDEN_PATH_MAX 1024

/* Golden values: $KVASIR_GOLDEN, else ../shared/golden, else the copies in tests/golden. False, and
 * a line that says so, when the file is at none of them. */
bool golden_find(const char *name, char path[GOLDEN_PATH_MAX]);
/* Inputs: $KVASIR_WORKLOADS, else ../shared/workloads. */
bool golden_find_workload(const char *name, char path[GOLDEN_PATH_MAX]);
/* The real model: $KVASIR_MODEL, else models/SmolLM2-135M-Instruct.Q4_1.gguf. */
bool golden_find_model(char path[GOLDEN_PATH_MAX]);

/* One JSON value a line, as an array. Fails the test when the file is not so. */
json_t *golden_read_lines(const char *path);
void golden_read_file(const char *path, struct str *out);
struct bytes golden_text(const json_t *object, const char *key); /* borrows; "" when absent */
/* Fails the test with the place of the first difference. `what` names the case. */
void golden_check_ids(const char *what, const struct ids *got, const json_t *expected);

#endif
