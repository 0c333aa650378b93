/* clock.c - two clocks and the offsets by which tests move them. */
#include "base/clock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

/* Written by tests on the main thread, read by any. */
static atomic_int_fast64_t mono_offset_us, wall_offset_ms;
static atomic_int_fast64_t frozen_mono_us, frozen_wall_ms;
static atomic_bool is_frozen;
/* The main thread's copy of both, constant for the length of a command. */
static int64_t cached_wall_ms, cached_mono_us;

static int64_t read_us(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_mono_us(void)
{
    int64_t base =
        atomic_load(&is_frozen) ? atomic_load(&frozen_mono_us) : read_us(CLOCK_MONOTONIC);
    return base + atomic_load(&mono_offset_us);
}

int64_t clock_wall_us(void)
{
    int64_t base =
        atomic_load(&is_frozen) ? atomic_load(&frozen_wall_ms) * 1000 : read_us(CLOCK_REALTIME);
    return base + atomic_load(&wall_offset_ms) * 1000;
}

int64_t clock_wall_ms(void)
{
    return clock_wall_us() / 1000;
}

int64_t clock_cpu_us(void)
{
    return atomic_load(&is_frozen) ? 0 : read_us(CLOCK_THREAD_CPUTIME_ID);
}

void clock_tick(void)
{
    cached_wall_ms = clock_wall_ms();
    cached_mono_us = clock_mono_us();
}

int64_t clock_now_ms(void)
{
    if (!cached_mono_us)
        clock_tick();
    return cached_wall_ms;
}

int64_t clock_now_us(void)
{
    if (!cached_mono_us)
        clock_tick();
    return cached_mono_us;
}

void clock_pass_ms(int64_t ms)
{
    atomic_fetch_add(&mono_offset_us, ms * 1000);
    atomic_fetch_add(&wall_offset_ms, ms);
}

void clock_advance_ms(int64_t ms)
{
    clock_pass_ms(ms);
    clock_tick();
}

void clock_step_wall_ms(int64_t ms)
{
    atomic_fetch_add(&wall_offset_ms, ms);
    clock_tick();
}

void clock_freeze(int64_t wall_ms, int64_t mono_us)
{
    atomic_store(&frozen_wall_ms, wall_ms);
    atomic_store(&frozen_mono_us, mono_us);
    atomic_store(&mono_offset_us, 0);
    atomic_store(&wall_offset_ms, 0);
    atomic_store(&is_frozen, true);
    clock_tick();
}
