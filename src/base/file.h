/* file.h - files: read-only maps, whole reads, atomic replacement; the seam for file faults. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/str.h"

struct file_map {
    const uint8_t *data; /* [len] read-only; NULL for an empty file */
    size_t len;
};
int file_map_open(const char *path, struct file_map *map, struct err *err);
void file_map_close(struct file_map *map);
int file_read(const char *path, size_t max_bytes, struct str *out, struct err *err);
/* Opened for writing at its end, made when it is not there. The descriptor is the caller's; -1:
 * err. */
int file_open_append(const char *path, struct err *err);
/* Writes a temporary file beside path, syncs it, renames it over path, syncs the directory. A
 * file that was there keeps its mode. On an error path is untouched (but when only the directory
 * could not be synced) and the temporary file is gone. */
int file_replace(const char *path, const void *data, size_t len, struct err *err);

/* Test seam: the n-th file call from now on fails with the given errno; n = 0 disarms. */
void file_fail_at(uint64_t n, int error_number);
uint64_t file_calls(void);

#endif
