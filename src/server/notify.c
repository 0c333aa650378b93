/* notify.c - keyspace notifications: events of keys as messages of Pub/Sub.
 *
 * An event becomes up to two messages: to __keyspace@<db>__:<key> with the event's name, and to
 * __keyevent@<db>__:<event> with the key's name, where notify-keyspace-events has K or E and the
 * letter of the event's class. The letters are Redis'; those of types that do not exist here are
 * accepted and never met. They are printed in one order whatever was given, all classes as A. (Redis
 * 7.0 forgets n when it prints A, and so loses it with CONFIG REWRITE; here it stays.)
 *
 * With the option off, or nobody subscribed to anything, an event costs two comparisons. */
#include "server/notify.h"

#include "server/pubsub.h"
#include "server/server.h"

/* In the order of printing; a flag is 1 << the index. Those before `all_classes` make up A. */
static const char letters[] = "g$lshzxetdnKEm";
enum { N_LETTERS = sizeof letters - 1, ALL_CLASSES = (1 << 10) - 1 };

static unsigned flag_of(char letter)
{
    for (int i = 0; i < N_LETTERS; i++)
        if (letters[i] == letter)
            return 1u << i;
    return 0;
}

bool notify_parse(struct bytes text, unsigned *flags)
{
    unsigned all = 0;
    for (size_t i = 0; i < text.len; i++) {
        unsigned flag = text.data[i] == 'A' ? ALL_CLASSES : flag_of(text.data[i]);
        if (flag == 0)
            return false;
        all |= flag;
    }
    *flags = all;
    return true;
}

void notify_print(unsigned flags, struct str *out)
{
    if ((flags & ALL_CLASSES) == ALL_CLASSES) {
        str_append_char(out, 'A');
        flags &= ~(unsigned)ALL_CLASSES;
    }
    for (int i = 0; i < N_LETTERS; i++)
        if (flags & (1u << i))
            str_append_char(out, letters[i]);
}

static void publish(struct server *s, const char *kind, int32_t db, struct bytes about,
                    struct bytes text)
{
    struct str channel = {0};
    str_printf(&channel, "__%s@%d__:", kind, db);
    str_append(&channel, about.data, about.len);
    (void)pubsub_publish(s->pubsub, bytes_of(&channel), text); /* who listens is no concern here */
    str_free(&channel);
}

void notify_key_event(void *server, int32_t db, struct bytes name, enum key_event event)
{
    struct server *s = server;
    struct bytes what = bytes_from(key_event_name(event));
    if (!(s->notify_flags & flag_of(key_event_class(event))) || !pubsub_has_subscribers(s->pubsub))
        return;
    if (s->notify_flags & flag_of('K'))
        publish(s, "keyspace", db, name, what);
    if (s->notify_flags & flag_of('E'))
        publish(s, "keyevent", db, what, name);
}
