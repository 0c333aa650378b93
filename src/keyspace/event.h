/* event.h - what happens to keys, in the words of Redis' keyspace notifications. */
#ifndef KEYSPACE_EVENT_H
#define KEYSPACE_EVENT_H

enum key_event {
    KEY_EVENT_NONE, /* what happened is no event of its own */
    KEY_EVENT_NEW,
    KEY_EVENT_DEL,
    KEY_EVENT_EXPIRE,
    KEY_EVENT_PERSIST,
    KEY_EVENT_EXPIRED,
    KEY_EVENT_EVICTED,
    KEY_EVENT_RENAME_FROM,
    KEY_EVENT_RENAME_TO,
    KEY_EVENT_MOVE_FROM,
    KEY_EVENT_MOVE_TO,
    KEY_EVENT_COPY_TO, /* also for each destination of FORK */
    KEY_EVENT_XADD,    /* also for a GEN's prompt and end entry, never for pieces */
    KEY_EVENT_XDEL,
    KEY_EVENT_XTRIM,
    KEY_EVENT_XSETID,
    KEY_EVENT_GEN_END, /* behind the xadd of the end entry */
    KEY_EVENT_MISS,    /* a command looked for a key to read and there was none */
    KEY_N_EVENTS,
};
const char *key_event_name(enum key_event event);
/* The letter of its class in notify-keyspace-events: g t x e n m. */
char key_event_class(enum key_event event);

#endif
