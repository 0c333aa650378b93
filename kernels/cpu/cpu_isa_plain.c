/* cpu_isa_plain.c - instruction sets of a build for other machines than x86-64: the scalar path. */
#include "kernels/cpu/cpu_isa.h"

#include <string.h>

const struct cpu_kernel *cpu_isa_find(const char *isa, struct err *err)
{
    if (!isa || strcmp(isa, "scalar") == 0)
        return &cpu_kernel_scalar;
    return err_null(err, "cpu: path \"%s\" is not in this build; it has scalar", isa);
}
