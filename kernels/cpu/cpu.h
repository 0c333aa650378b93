/* cpu.h - the CPU backend as others see it. */
#ifndef CPU_H
#define CPU_H

#include "kernels/backend.h"

extern const struct backend_ops cpu_backend_ops;

#endif
