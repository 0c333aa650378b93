/* scripts.h - conversations between one to three clients and the server, as text.
 *
 * A line is a client's number and what it says; the reply is not waited for, a few turns of the loop
 * go by. Other lines: `hold N` lets the model make N more steps and stops it, `go` lets it run until
 * nothing generates, `wait MS` lets time pass, `close C` ends a client's connection, `long C` says a
 * GEN whose prompt a job must tokenise. Used by the test in which call n fails, and as seeds. */
#ifndef TESTS_SERVER_SCRIPTS_H
#define TESTS_SERVER_SCRIPTS_H

struct script {
    const char *name;
    const char *text;
};
extern const struct script scripts[]; /* ends with name NULL */

#endif
