/* cpu_kernel_avx512_fma.c - the kernel bodies on AVX-512 VNNI without AVX512_BF16: for CPUs that lack
 * it, or whose VDPBF16PS rounds otherwise than its manual says. Same words, other compiler flags. */
#include "kernels/cpu/cpu_vec_avx512.h"
#include "kernels/cpu/cpu_body.h"
