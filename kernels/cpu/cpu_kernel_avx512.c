/* cpu_kernel_avx512.c - the kernel bodies on the vector words of cpu_vec_avx512.h. */
#include "kernels/cpu/cpu_vec_avx512.h"
#include "kernels/cpu/cpu_body.h"

/* Random pairs and sums of comparable size, so that the order of the two products and the number of
 * roundings show in the last bit: the 512 cases tell the alternatives apart with certainty. */
bool cpu_avx512_bf16_is_exact(void)
{
    uint64_t state = 88172645463325252u;
    for (int round = 0; round < 32; round++) {
        uint32_t bits[3][16];
        float sums[16], out[16];
        for (int i = 0; i < 48; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint32_t r = (uint32_t)(state >> 32);
            uint32_t low = (r & 0x807f) | (120 + (r >> 8) % 16) << 7;
            uint32_t high = (r >> 16 & 0x807f) | (120 + (r >> 24) % 16) << 7;
            bits[i / 16][i % 16] = i < 32 ? low | high << 16 : (r & 0x807fffffu) | 124u << 23;
        }
        memcpy(sums, bits[2], sizeof sums);
        vf_store(out, vf_dot_bf16(vf_load(sums), vi_load(bits[0]), vi_load(bits[1])));
        for (int i = 0; i < 16; i++) {
            uint32_t halves[4] = {bits[0][i] & 0xffff0000u, bits[1][i] & 0xffff0000u,
                                  bits[0][i] << 16, bits[1][i] << 16};
            float f[4];
            memcpy(f, halves, sizeof f);
            float want = fmaf(f[2], f[3], fmaf(f[0], f[1], sums[i]));
            if (memcmp(&want, &out[i], 4) != 0)
                return false;
        }
    }
    return true;
}
