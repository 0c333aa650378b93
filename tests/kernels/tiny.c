/* tiny.c - see tiny.h. */
#include "tests/kernels/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

struct model *tiny_model(const struct mkmodel_options *options)
{
    const char *folder = getenv("TMPDIR");
    struct err err = {""};
    struct str bytes = {0};
    char path[512];

    snprintf(path, sizeof(path), "%s/kvasir-tiny-XXXXXX", folder != NULL ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0 || mkmodel_build(options, &bytes, &err) != 0)
        fail_msg("%s: %s", path, err.text);
    assert_int_equal(write(fd, bytes.data, bytes.len), (ssize_t)bytes.len);
    close(fd);
    struct model *m = model_open(path, &err);
    unlink(path);
    str_free(&bytes);
    if (m == NULL)
        fail_msg("%s", err.text);
    return m;
}
