/* list.h - intrusive doubly linked list. The head is a node that links to itself when empty. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}
static inline bool list_is_empty(const struct list *l)
{
    return l->next == l;
}
static inline void list_insert_before(struct list *at, struct list *node)
{
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}
#define list_push_back(head, node) list_insert_before((head), (node))
static inline void list_push_front(struct list *head, struct list *node)
{
    list_insert_before(head->next, node);
}
/* Safe twice: a removed node links to itself. */
static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}
/* All of from, in its order, behind `at`: the head of a list or one of its nodes. Empties from. */
static inline void list_splice(struct list *at, struct list *from)
{
    if (list_is_empty(from))
        return;
    from->next->prev = at;
    from->prev->next = at->next;
    at->next->prev = from->prev;
    at->next = from->next;
    list_init(from);
}
#define LIST_ITEM(node, type, member) ((type *)((char *)(node) - offsetof(type, member)))
#define LIST_FIRST(head, type, member)                                                            \
    (list_is_empty(head) ? NULL : LIST_ITEM((head)->next, type, member))
/* The current item may be removed inside the loop. */
#define LIST_FOREACH(head, node, next_node)                                                       \
    for (struct list *node = (head)->next, *next_node = node->next; node != (head);               \
         node = next_node, next_node = node->next)

#endif
