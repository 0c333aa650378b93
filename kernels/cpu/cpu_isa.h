/* cpu_isa.h - which instruction set this machine has, as a table of kernels. */
#ifndef CPU_ISA_H
#define CPU_ISA_H

#include "base/err.h"
#include "kernels/cpu/cpu_kernel.h"

/* isa: "scalar", "avx2", "avx512", or NULL for the best. NULL with the reason when this build or
 * this machine does not have it. */
const struct cpu_kernel *cpu_isa_find(const char *isa, struct err *err);

#endif
