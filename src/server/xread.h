/* xread.h - what a blocked XREAD asked for; cmd_xread.c makes and answers it. */
#ifndef SERVER_XREAD_H
#define SERVER_XREAD_H

struct xread;
void xread_free(struct xread *x); /* accepts NULL */

#endif
