/* cpu_kernel_avx2.c - the kernel bodies on the vector words of cpu_vec_avx2.h. */
#include "kernels/cpu/cpu_vec_avx2.h"
#include "kernels/cpu/cpu_body.h"
