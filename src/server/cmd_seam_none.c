/* cmd_seam_none.c - the product has no SEAM command.
 *
 * Tests link tests/integration/cmd_seam.c in its place, which moves the clock and makes calls fail: the
 * choice is made by file, so that no line of the product knows of it. */
#include "server/command.h"

const struct command cmd_seam_table[] = {{.name = NULL}};
