/* cpu_body.h - all kernel bodies and their table, for the vector words included before it. */
#include <math.h>
#include <string.h>
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/cpu_body_matmul.h"
#include "kernels/cpu/cpu_body_rows.h"
#include "kernels/cpu/cpu_body_attention.h"
#include "kernels/cpu/cpu_body_attention8.h"

#define KERNEL_NAME(isa) KERNEL_NAME_OF(isa)
#define KERNEL_NAME_OF(isa) cpu_kernel_##isa

const struct cpu_kernel KERNEL_NAME(CPU_ISA) = {
    .isa = CPU_ISA_NAME,
    .bf16_words = BF16_NATIVE ? 1 : 2,
    .byte_offset = BYTE_OFFSET,
    .matmul = {[CPU_P4] = matmul_p4,
               [CPU_P4S] = matmul_p4s,
               [CPU_P4F] = matmul_p4f,
               [CPU_P8] = matmul_p8,
               [CPU_P8M] = matmul_p8m,
               [CPU_P8H] = matmul_p8h,
               [CPU_BF16] = matmul_bf16,
               [CPU_F16] = matmul_f16,
               [CPU_F32] = matmul_f32},
    .put_int8 = put_int8,
    .put_bf16 = put_bf16,
    .norm = norm,
    .swiglu = swiglu,
    .round_bf16 = round_bf16,
    .largest = largest,
    .to_codes = to_codes,
    .attend = {[KV_BF16] = attend, [KV_INT8] = attend8},
    .merge = merge,
    .finish = finish,
    .passes = {.max = scan_max, .sum_exp = scan_sum_exp, .find = scan_find},
};
