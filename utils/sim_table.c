/* sim_table.c - tables on paper, as TSV, and as curves through gnuplot. */
#include "utils/sim_table.h"

#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

enum { MAX_COLUMNS = 16 };

void sim_table_begin(struct sim_table *t, const char *name, const char *title, const char *head)
{
    *t = (struct sim_table){.name = name};
    printf("\n%s\n", title);
    str_printf(&t->rows, "%s\n", head);
}

void sim_table_row(struct sim_table *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    str_vprintf(&t->rows, format, args);
    va_end(args);
    str_append_char(&t->rows, '\n');
}

void sim_table_note(struct sim_table *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    str_append_str(&t->notes, "# ");
    str_vprintf(&t->notes, format, args);
    va_end(args);
    str_append_char(&t->notes, '\n');
}

/* The next word and whether a line ends with it; false behind the last. */
static bool next_word(struct bytes *rest, struct bytes *word, bool *is_last)
{
    size_t n = 0;

    while (n < rest->len && rest->data[n] != '\t' && rest->data[n] != '\n')
        n++;
    if (n == rest->len)
        return false;
    *word = (struct bytes){rest->data, n};
    *is_last = rest->data[n] == '\n';
    *rest = (struct bytes){rest->data + n + 1, rest->len - n - 1};
    return true;
}

/* Width on paper: characters, not bytes. */
static size_t width_of(struct bytes word)
{
    size_t n = 0;

    for (size_t i = 0; i < word.len; i++)
        n += (word.data[i] & 0xc0) != 0x80;
    return n;
}

static void print_rows(const struct sim_table *t)
{
    size_t widths[MAX_COLUMNS] = {0}, column = 0;
    struct bytes rest = bytes_of(&t->rows), word;
    bool is_last;

    for (; next_word(&rest, &word, &is_last); column = is_last ? 0 : column + 1)
        if (column < MAX_COLUMNS && width_of(word) > widths[column])
            widths[column] = width_of(word);
    rest = bytes_of(&t->rows);
    column = 0;
    for (; next_word(&rest, &word, &is_last); column = is_last ? 0 : column + 1) {
        size_t width = column < MAX_COLUMNS ? widths[column] : 0, own = width_of(word);
        int pad = (int)(width > own ? width - own : 0);
        if (column == 0) /* names to the left, numbers to the right */
            printf("  %.*s%*s", (int)word.len, word.data, pad, "");
        else
            printf("  %*s%.*s", pad, "", (int)word.len, word.data);
        if (is_last)
            putchar('\n');
    }
    if (t->notes.len > 0)
        fputs(t->notes.data, stdout);
}

static int write_file(const char *folder, const char *name, const char *end, struct bytes first,
                      struct bytes second, struct err *err)
{
    struct str path = {0};
    str_printf(&path, "%s/%s%s", folder, name, end);
    FILE *file = fopen(path.data, "w");
    bool ok = file != NULL;

    if (file) {
        ok = fwrite(first.data, 1, first.len, file) == first.len;
        ok &= fwrite(second.data, 1, second.len, file) == second.len;
        ok &= fclose(file) == 0;
    }
    int rc = ok ? 0 : err_set(err, "%s cannot be written", path.data);
    str_free(&path);
    return rc;
}

int sim_table_end(struct sim_table *t, const char *folder, struct err *err)
{
    int rc = 0;

    print_rows(t);
    fflush(stdout);
    if (folder)
        rc = write_file(folder, t->name, ".tsv", bytes_of(&t->rows), bytes_of(&t->notes), err);
    str_free(&t->rows);
    str_free(&t->notes);
    return rc;
}

int sim_table_plot(const char *folder, const char *name, const char *x, const char *y, int last,
                   bool is_logarithmic, struct err *err)
{
    struct str script = {0}, path = {0};

    str_printf(&script,
               "set terminal svg size 720,440 background 'white'\n"
               "set output '%s/%s.svg'\n"
               "set datafile separator '\\t'\n"
               "set xlabel '%s'\nset ylabel '%s'\nset grid\nset key left top\n%s"
               "file = '%s/%s.tsv'\n"
               "plot for [i = 2:%d] file using 1:i with linespoints"
               " title columnheader(i)\n",
               folder, name, x, y, is_logarithmic ? "set logscale x 2\n" : "", folder, name, last);
    int rc = write_file(folder, name, ".gp", bytes_of(&script), (struct bytes){"", 0}, err);
    str_printf(&path, "%s/%s.gp", folder, name);
    char program[] = "gnuplot", *arguments[] = {program, path.data, NULL};
    pid_t pid;
    int status = 0;
    if (rc == 0 && posix_spawnp(&pid, program, NULL, NULL, arguments, environ) == 0 &&
        (waitpid(pid, &status, 0) < 0 || status != 0) &&
        !(WIFEXITED(status) && WEXITSTATUS(status) == 127)) /* 127: it is not there */
        rc = err_set(err, "gnuplot failed on %s", path.data);
    str_free(&script);
    str_free(&path);
    return rc;
}
