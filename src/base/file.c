/* file.c - files behind one seam: every system call that can fail goes through `fails`, so that a
 * test can make call number n fail with any errno. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"

/* Test state of the seam; files are used from job threads too. */
static atomic_uint_fast64_t n_calls, fail_call;
static atomic_int fail_errno;

void file_fail_at(uint64_t n, int error_number)
{
    atomic_store(&n_calls, 0);
    atomic_store(&fail_errno, error_number);
    atomic_store(&fail_call, n);
}

uint64_t file_calls(void)
{
    return atomic_load(&n_calls);
}

static bool fails(void)
{
    if (atomic_fetch_add(&n_calls, 1) + 1 != atomic_load(&fail_call))
        return false;
    errno = atomic_load(&fail_errno);
    return true;
}

static int open_at(const char *path, int flags, mode_t mode)
{
    return fails() ? -1 : open(path, flags | O_CLOEXEC, mode);
}

int file_map_open(const char *path, struct file_map *map, struct err *err)
{
    struct stat st;
    *map = (struct file_map){0};
    int fd = open_at(path, O_RDONLY, 0);
    if (fd < 0)
        return err_set(err, "%s: %s", path, strerror(errno));
    int rc = -1;
    if (fails() || fstat(fd, &st) < 0) {
        err_set(err, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        err_set(err, "%s: not a regular file", path);
    } else if (st.st_size == 0) {
        rc = 0;
    } else {
        void *p =
            fails() ? MAP_FAILED : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            err_set(err, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
                    strerror(errno));
        } else {
            *map = (struct file_map){.data = p, .len = (size_t)st.st_size};
            rc = 0;
        }
    }
    close(fd);
    return rc;
}

void file_map_close(struct file_map *map)
{
    if (map->data)
        munmap((void *)map->data, map->len);
    *map = (struct file_map){0};
}

/* Reads until the end of the file, but never more than max_bytes + 1. */
static int read_all(int fd, size_t max_bytes, struct str *out)
{
    for (;;) {
        str_reserve(out, 65536);
        ssize_t n = fails() ? -1 : read(fd, out->data + out->len, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return (int)n;
        out->len += (size_t)n;
        out->data[out->len] = '\0';
        if (out->len > max_bytes) {
            errno = EFBIG;
            return -1;
        }
    }
}

int file_read(const char *path, size_t max_bytes, struct str *out, struct err *err)
{
    int fd = open_at(path, O_RDONLY, 0);
    if (fd < 0)
        return err_set(err, "%s: %s", path, strerror(errno));
    int rc = read_all(fd, max_bytes, out);
    if (rc < 0 && errno == EFBIG)
        err_set(err, "%s: larger than the limit of %zu bytes", path, max_bytes);
    else if (rc < 0)
        err_set(err, "%s: %s", path, strerror(errno));
    close(fd);
    return rc;
}

int file_open_append(const char *path, struct err *err)
{
    int fd = open_at(path, O_WRONLY | O_CREAT | O_APPEND, 0640);
    if (fd < 0)
        return err_set(err, "%s: %s", path, strerror(errno));
    return fd;
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = fails() ? -1 : write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* The rename is durable only when the directory is synced too. */
static int sync_directory(const char *path)
{
    char *copy = xstrdup(path);
    int fd = open_at(dirname(copy), O_RDONLY | O_DIRECTORY, 0);
    xfree(copy);
    if (fd < 0)
        return -1;
    int rc = fails() ? -1 : fsync(fd);
    int saved = errno;
    close(fd);
    errno = saved;
    return rc;
}

int file_replace(const char *path, const void *data, size_t len, struct err *err)
{
    struct str temporary = {0};
    str_printf(&temporary, "%s.%d.tmp", path, (int)getpid());
    const char *step = "look at";
    struct stat before;
    int rc = -1, fd = -1;
    bool has_mode =
        !fails() && stat(path, &before) == 0; /* what holds a password stays as closed */
    if (!has_mode && errno != ENOENT)
        goto out;
    step = "create";
    fd = open_at(temporary.data, O_WRONLY | O_CREAT | O_TRUNC, has_mode ? 0600 : 0640);
    if (fd < 0)
        goto out;
    step = "set the mode of";
    if (has_mode && (fails() || fchmod(fd, before.st_mode & 07777) < 0))
        goto out;
    step = "write";
    if (write_all(fd, data, len) < 0)
        goto out;
    step = "sync";
    if (fails() || fsync(fd) < 0)
        goto out;
    step = "close";
    int closed = fails() ? -1 : close(fd);
    if (closed < 0)
        goto out;
    fd = -1;
    step = "rename";
    if (fails() || rename(temporary.data, path) < 0)
        goto out;
    step = "sync the directory of";
    rc = sync_directory(path);
out:
    if (rc < 0) {
        err_set(err, "%s: cannot %s it: %s", path, step, strerror(errno));
        unlink(temporary.data);
    }
    if (fd >= 0)
        close(fd);
    str_free(&temporary);
    return rc;
}
