/* cpu_kernel_scalar.c - the kernel bodies on the vector words of cpu_vec_scalar.h. */
#include "kernels/cpu/cpu_vec_scalar.h"
#include "kernels/cpu/cpu_body.h"
