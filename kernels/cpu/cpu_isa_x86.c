/* cpu_isa_x86.c - instruction sets of x86-64, best first. */
#include "kernels/cpu/cpu_isa.h"

#include <cpuid.h>
#include <string.h>

static bool has_scalar(void)
{
    return true;
}
/* clang 14 (Debian 12) has no name for it; that the system saves the registers, avx2 tells. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
static bool has_avx512_vnni(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
static bool has_avx512_bf16(void)
{
    return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16") && cpu_avx512_bf16_is_exact();
}

static const struct path {
    const char *isa; /* two tables may serve one name: the first that the machine can run */
    const struct cpu_kernel *kernel;
    bool (*has)(void);
} paths[] = {
    {"avx512", &cpu_kernel_avx512, has_avx512_bf16},
    {"avx512", &cpu_kernel_avx512_fma, has_avx512_vnni},
    {"avx2", &cpu_kernel_avx2, has_avx2},
    {"scalar", &cpu_kernel_scalar, has_scalar},
};

const struct cpu_kernel *cpu_isa_find(const char *isa, struct err *err)
{
    bool is_known = false;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (isa && strcmp(isa, paths[i].isa) != 0)
            continue;
        is_known = true;
        if (paths[i].has())
            return paths[i].kernel;
    }
    if (!is_known)
        return err_null(err, "cpu: unknown path \"%s\"; known are avx512, avx2, scalar", isa);
    return err_null(err, "cpu: this machine cannot run the %s path", isa);
}
