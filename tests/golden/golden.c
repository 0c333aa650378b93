/* golden.c - where the golden tests find their data, and JSON lines as a list. */
#include "tests/golden/golden.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/err.h"
#include "base/file.h"

enum { FILE_MAX_BYTES = 16 << 20 };

static const char *source_folder(void)
{
    const char *source = getenv("KVASIR_SRC");
    return source ? source : ".";
}

/* variable/name if the variable is set, else source/folder/name. */
static bool try_place(const char *variable, const char *folder, const char *name,
                      char path[GOLDEN_PATH_MAX])
{
    const char *set = variable ? getenv(variable) : NULL;
    if (set)
        snprintf(path, GOLDEN_PATH_MAX, "%s/%s", set, name);
    else
        snprintf(path, GOLDEN_PATH_MAX, "%s/%s/%s", source_folder(), folder, name);
    return access(path, R_OK) == 0;
}

bool golden_find(const char *name, char path[GOLDEN_PATH_MAX])
{
    if (try_place("KVASIR_GOLDEN", "../shared/golden", name, path) ||
        try_place(NULL, "tests/golden", name, path))
        return true;
    printf("# golden file %s is not here (KVASIR_GOLDEN names its folder)\n", name);
    return false;
}

bool golden_find_workload(const char *name, char path[GOLDEN_PATH_MAX])
{
    if (try_place("KVASIR_WORKLOADS", "../shared/workloads", name, path))
        return true;
    printf("# input %s is not here (KVASIR_WORKLOADS names its folder)\n", name);
    return false;
}

bool golden_find_model(char path[GOLDEN_PATH_MAX])
{
    const char *set = getenv("KVASIR_MODEL");
    if (set)
        snprintf(path, GOLDEN_PATH_MAX, "%s", set);
    else
        snprintf(path, GOLDEN_PATH_MAX, "%s/models/SmolLM2-135M-Instruct.Q4_1.gguf",
                 source_folder());
    if (access(path, R_OK) == 0)
        return true;
    printf("# the model is not here: %s (KVASIR_MODEL names the file)\n", path);
    return false;
}

void golden_read_file(const char *path, struct str *out)
{
    struct err err;
    if (file_read(path, FILE_MAX_BYTES, out, &err) < 0)
        fail_msg("%s", err.text);
}

json_t *golden_read_lines(const char *path)
{
    struct str text = {0};
    json_t *lines = json_array();
    golden_read_file(path, &text);
    for (char *line = text.data; line && *line;) {
        char *end = strchr(line, '\n');
        size_t len = end ? (size_t)(end - line) : strlen(line);
        json_error_t error;
        json_t *value = json_loadb(line, len, JSON_ALLOW_NUL, &error);
        if (!value)
            fail_msg("%s: line %zu: %s", path, json_array_size(lines) + 1, error.text);
        json_array_append_new(lines, value);
        line = end ? end + 1 : NULL;
    }
    str_free(&text);
    assert_true(json_array_size(lines) > 0);
    return lines;
}

struct bytes golden_text(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value ? (struct bytes){json_string_value(value), json_string_length(value)}
                 : (struct bytes){"", 0};
}

void golden_check_ids(const char *what, const struct ids *got, const json_t *expected)
{
    size_t n = json_array_size(expected);
    for (size_t i = 0; i < n && i < (size_t)got->n; i++) {
        json_int_t want = json_integer_value(json_array_get(expected, i));
        if (got->data[i] != want)
            fail_msg("%s: id %zu of %zu is %d, expected %lld", what, i, n, got->data[i],
                     (long long)want);
    }
    if ((size_t)got->n != n)
        fail_msg("%s: %d ids, expected %zu", what, got->n, n);
}
