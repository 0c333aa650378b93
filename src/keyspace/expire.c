/* expire.c - time to live of keys.
 *
 * EXPIRE and PEXPIRE count on the monotonic clock: an operator who sets the wall clock neither
 * kills nor preserves sessions. EXPIREAT and PEXPIREAT name a point of Unix time and follow the
 * wall clock, as their callers expect. Each kind has its heap of timers; an expired key is removed
 * when its timer fires or when somebody asks for it, whichever comes first. Main thread only. */
#include "keyspace/keyspace.h"

#include "base/clock.h"
#include "base/plant.h"
#include "base/err.h"

static struct timers *heap_of(const struct key *key)
{
    return key->expires_at_wall ? &key->ks->wall_timers : &key->ks->timers;
}

static void has_expired(struct timer *timer)
{
    struct key *key = LIST_ITEM(timer, struct key, expiry);
    if (key->db->is_flushed || key->removing)
        return; /* it goes already */
    key->ks->stats.expired++;
    key_remove(key, KEY_EVENT_EXPIRED);
}

struct key *expiry_key(struct timer *timer)
{
    return timer->fire == has_expired ? LIST_ITEM(timer, struct key, expiry) : NULL;
}

static void clear(struct key *key)
{
    if (!key->expires)
        return;
    timer_stop(heap_of(key), &key->expiry);
    key->expires = false;
    key->db->n_expiring--;
}

static void set(struct key *key, bool at_wall, int64_t at)
{
    clear(key);
    key->expires = true;
    key->expires_at_wall = at_wall;
    key->db->n_expiring++;
    key->expiry.fire = has_expired;
    timer_start(heap_of(key), &key->expiry, at);
}

void key_copy_expiry(struct key *to, const struct key *from)
{
    if (from->expires && !PLANTED(TTL_LOST))
        set(to, from->expires_at_wall, from->expiry.at);
}

int64_t key_ttl_ms(const struct key *key)
{
    if (!key->expires)
        return -1;
    if (key->expires_at_wall)
        return key->expiry.at > clock_now_ms() ? key->expiry.at - clock_now_ms() : 0;
    int64_t left_us = key->expiry.at - clock_now_us();
    return left_us > 0 ? (left_us + 999) / 1000 : 0;
}

int64_t key_expire_time_ms(const struct key *key)
{
    if (!key->expires)
        return -1;
    return key->expires_at_wall ? key->expiry.at : clock_now_ms() + key_ttl_ms(key);
}

/* By remaining time, so that both kinds compare; a key without one lives for ever. */
static bool flags_allow(const struct key *key, int64_t left_ms, int flags)
{
    int64_t now_left = key_ttl_ms(key);
    if ((flags & EXPIRE_NX) && now_left >= 0)
        return false;
    if ((flags & EXPIRE_XX) && now_left < 0)
        return false;
    if ((flags & EXPIRE_GT) && (now_left < 0 || left_ms <= now_left))
        return false;
    return !(flags & EXPIRE_LT) || now_left < 0 || left_ms < now_left;
}

bool keys_expire(struct keyspace *ks, int32_t db, struct bytes name, int64_t ms, bool absolute,
                 int flags)
{
    struct key *key = keys_find(ks, db, name);
    int64_t left_ms, at_us;
    if (key == NULL)
        return false;
    left_ms = ms;
    if (absolute) /* how long ago makes no difference, and may not fit */
        left_ms = ms > clock_now_ms() ? ms - clock_now_ms() : -1;
    if (!flags_allow(key, left_ms, flags))
        return false;
    if (left_ms <= 0) {
        key_remove(key, KEY_EVENT_DEL); /* as in Redis: nothing has expired by itself */
        return true;
    }
    if (absolute)
        set(key, true, ms);
    else if (__builtin_mul_overflow(ms, (int64_t)1000, &at_us) ||
             __builtin_add_overflow(at_us, clock_now_us(), &at_us))
        set(key, false, INT64_MAX - 1); /* some 292,000 years */
    else
        set(key, false, at_us);
    key_changed(key, KEY_EVENT_EXPIRE);
    return true;
}

bool keys_persist(struct keyspace *ks, int32_t db, struct bytes name)
{
    struct key *key = keys_find(ks, db, name);
    if (key == NULL || !key->expires)
        return false;
    clear(key);
    key_changed(key, KEY_EVENT_PERSIST);
    return true;
}
