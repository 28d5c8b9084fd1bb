/* The sum of a message's bytes: 64 bits, at the rate at which memory is read.

   Bytes are 32-bit words x, in blocks of 4,096 bytes, with fixed keys k:
     low half    the sum of all words, mod 2^32
     high half   of each block NH = the sum of (x[2j] + k[2j] mod 2^32) (x[2j+1] + k[2j+1] mod 2^32),
                 mod 2^64; these are the coefficients of a polynomial mod 2^61 - 1.
   Source: Black et al., "UMAC: Fast and Secure Message Authentication", 1999 (NH); docs/notes/0092. */
#ifndef HORN_SUM_H
#define HORN_SUM_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HORN_BLOCK 4096
#define HORN_AHEAD 2048 /* the distance of prefetches in bytes */
#define HORN_PRIME ((UINT64_C(1) << 61) - 1)
#define HORN_POINT UINT64_C(0x1e3779b97f4a7c15) /* the point at which the polynomial is evaluated */

static uint32_t horn_keys[HORN_BLOCK / 4] __attribute__((aligned(64)));

/* splitmix64 from 0 (Steele et al. 2014): a table that anybody can make. */
static void horn_make_keys(void) {
    uint64_t state = 0;
    for (size_t j = 0; j < HORN_BLOCK / 8; j++) {
        uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        z ^= z >> 31;
        horn_keys[2 * j] = (uint32_t)z;
        horn_keys[2 * j + 1] = (uint32_t)(z >> 32);
    }
}

/* NH of so many pairs of words, from the beginning of a block; adds the words to *words. */
static uint64_t horn_nh(const unsigned char *p, size_t n_pairs, uint32_t *words) {
    uint64_t total = 0;
    uint32_t sum = 0, x[2];
    for (size_t j = 0; j < n_pairs; j++) {
        memcpy(x, p + 8 * j, 8);
        sum += x[0] + x[1];
        total += (uint64_t)(uint32_t)(x[0] + horn_keys[2 * j])
               * (uint32_t)(x[1] + horn_keys[2 * j + 1]);
    }
    *words += sum;
    return total;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* NH of a whole block. */
__attribute__((target("avx2")))
static uint64_t horn_nh_avx2(const unsigned char *p, uint32_t *words) {
    const __m256i *k = (const __m256i *)horn_keys;
    __m256i sum[4] = {0}, total[4] = {0};
    for (int j = 0; j < HORN_BLOCK / 32; j += 4) {
        _mm_prefetch((const char *)p + 32 * j + HORN_AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)p + 32 * j + 64 + HORN_AHEAD, _MM_HINT_T0);
        for (int i = 0; i < 4; i++) {
            __m256i x = _mm256_loadu_si256((const __m256i *)p + j + i);
            __m256i w = _mm256_add_epi32(x, _mm256_load_si256(k + j + i));
            sum[i] = _mm256_add_epi32(sum[i], x);
            total[i] = _mm256_add_epi64(total[i], _mm256_mul_epu32(w, _mm256_srli_epi64(w, 32)));
        }
    }
    sum[0] = _mm256_add_epi32(_mm256_add_epi32(sum[0], sum[1]), _mm256_add_epi32(sum[2], sum[3]));
    total[0] = _mm256_add_epi64(_mm256_add_epi64(total[0], total[1]),
                                _mm256_add_epi64(total[2], total[3]));
    uint32_t s[8];
    uint64_t t[4];
    memcpy(s, sum, 32);
    memcpy(t, total, 32);
    *words += s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
    return t[0] + t[1] + t[2] + t[3];
}

__attribute__((target("avx512f")))
static uint64_t horn_nh_avx512(const unsigned char *p, uint32_t *words) {
    const __m512i *k = (const __m512i *)horn_keys;
    __m512i sum[4] = {0}, total[4] = {0};
    for (int j = 0; j < HORN_BLOCK / 64; j += 4)
        for (int i = 0; i < 4; i++) {
            _mm_prefetch((const char *)p + 64 * (j + i) + HORN_AHEAD, _MM_HINT_T0);
            __m512i x = _mm512_loadu_si512((const __m512i *)p + j + i);
            __m512i w = _mm512_add_epi32(x, _mm512_load_si512(k + j + i));
            sum[i] = _mm512_add_epi32(sum[i], x);
            total[i] = _mm512_add_epi64(total[i], _mm512_mul_epu32(w, _mm512_srli_epi64(w, 32)));
        }
    sum[0] = _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]), _mm512_add_epi32(sum[2], sum[3]));
    total[0] = _mm512_add_epi64(_mm512_add_epi64(total[0], total[1]),
                                _mm512_add_epi64(total[2], total[3]));
    *words += (uint32_t)_mm512_reduce_add_epi32(sum[0]);
    return (uint64_t)_mm512_reduce_add_epi64(total[0]);
}

/* The widest vectors of this processor: 2 is AVX-512, 1 AVX2, 0 plain C. */
static int horn_widest(void) {
    if (__builtin_cpu_supports("avx512f")) return 2;
    return __builtin_cpu_supports("avx2") ? 1 : 0;
}

static uint64_t horn_nh_block(const unsigned char *p, uint32_t *words, int way) {
    if (way == 2) return horn_nh_avx512(p, words);
    if (way == 1) return horn_nh_avx2(p, words);
    return horn_nh(p, HORN_BLOCK / 8, words);
}
#else
static int horn_widest(void) { return 0; }

static uint64_t horn_nh_block(const unsigned char *p, uint32_t *words, int way) {
    (void)way;
    return horn_nh(p, HORN_BLOCK / 8, words);
}
#endif

/* a * HORN_POINT + b, mod 2^61 - 1; a below that. */
static uint64_t horn_next(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * HORN_POINT + b;
    uint64_t found = ((uint64_t)product & HORN_PRIME) + (uint64_t)(product >> 61);
    return found >= HORN_PRIME ? found - HORN_PRIME : found;
}

/* The sum of n bytes; sum : of the bytes before them, 0 for none. A tail is padded to 8 bytes by
 * 0. */
static uint64_t horn_sum(uint64_t sum, const unsigned char *p, size_t n, int way) {
    uint32_t words = (uint32_t)sum;
    uint64_t high = sum >> 32;
    for (; n >= HORN_BLOCK; p += HORN_BLOCK, n -= HORN_BLOCK)
        high = horn_next(high, horn_nh_block(p, &words, way));
    if (n) {
        unsigned char tail[HORN_BLOCK];
        size_t n_pairs = (n + 7) / 8;
        memset(tail + 8 * n_pairs - 8, 0, 8);
        memcpy(tail, p, n);
        high = horn_next(high, horn_nh(tail, n_pairs, &words));
    }
    high = horn_next(high, 0); /* all bits of the last block come into the low ones */
    return (high << 32) | words;
}
#endif
