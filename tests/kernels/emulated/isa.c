/* isa.c - instruction sets whose best one is an emulated AVX-512, in place of cpu_isa_x86.c: the
 * linker takes this table first. The kernel is named by the build, as in
 * -DEMULATED=cpu_kernel_avx512; over eight lanes each it needs what the AVX2 path needs. */
#include "kernels/cpu/cpu_isa.h"

#include <string.h>

static const struct path {
    const char *isa;
    const struct cpu_kernel *kernel;
} paths[] = {{"avx512", &EMULATED}, {"avx2", &cpu_kernel_avx2}, {"scalar", &cpu_kernel_scalar}};

const struct cpu_kernel *cpu_isa_find(const char *isa, struct err *err)
{
    bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    for (size_t i = has_avx2 ? 0 : 2; i < sizeof paths / sizeof *paths; i++)
        if (!isa || strcmp(isa, paths[i].isa) == 0)
            return paths[i].kernel;
    return err_null(err, "cpu: this machine cannot run the %s path, not even emulated", isa);
}
