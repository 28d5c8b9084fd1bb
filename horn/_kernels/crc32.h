/* CRC-32 as zlib's, by carry-less multiplication where the processor has it.

   Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009;
   the constants are those of the paper for the reflected polynomial 0xEDB88320. */
#ifndef HORN_CRC32_H
#define HORN_CRC32_H
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HORN_HAS_FOLDING 1
#include <immintrin.h>

#define HORN_AHEAD 1024 /* bytes that are asked for before they are needed */
#define HORN_FOLD(x, k, next)                                                     \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00),                 \
                                _mm_clmulepi64_si128(x, k, 0x11)), next)

#define HORN_FOLD_WIDE(x, k, next)                                                \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00),               \
                              _mm512_clmulepi64_epi128(x, k, 0x11), next, 0x96)

static int horn_can_fold(void) {
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

static int horn_can_fold_wide(void) {
    return horn_can_fold() && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("vpclmulqdq");
}

/* The checksum of the 16 bytes that stand for all before p, and the n after it. */
__attribute__((target("pclmul,sse4.1")))
static uint32_t horn_fold_rest(__m128i a, const unsigned char *p, size_t n) {
    const __m128i k34 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i k5 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i b;
    while (n >= 16) {
        a = HORN_FOLD(a, k34, _mm_loadu_si128((const __m128i *)p));
        p += 16;
        n -= 16;
    }
    b = _mm_clmulepi64_si128(a, k34, 0x10);                 /* 128 to 64 bits */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), b);
    b = _mm_srli_si128(a, 4);
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low), k5, 0x00), b);
    b = _mm_clmulepi64_si128(_mm_and_si128(a, low), poly, 0x10);   /* Barrett to 32 */
    b = _mm_clmulepi64_si128(_mm_and_si128(b, low), poly, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}

/* n >= 256 and a multiple of 16; crc without the final complement. */
__attribute__((target("pclmul,sse4.1,avx512f,vpclmulqdq")))
static uint32_t horn_fold_wide(uint32_t crc, const unsigned char *p, size_t n) {
    const __m512i k2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01322d1430, 0x011542778a));
    const __m512i k512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01c6e41596, 0x0154442bd4));
    const __m128i k128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m512i x[4];
    for (int i = 0; i < 4; i++) x[i] = _mm512_loadu_si512(p + 64 * i);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
        for (int i = 0; i < 4; i++) {
            _mm_prefetch((const char *)p + HORN_AHEAD + 64 * i, _MM_HINT_T0);
            x[i] = HORN_FOLD_WIDE(x[i], k2048, _mm512_loadu_si512(p + 64 * i));
        }
    for (int i = 1; i < 4; i++) x[i] = HORN_FOLD_WIDE(x[i - 1], k512, x[i]);
    __m128i a = _mm512_castsi512_si128(x[3]);
    a = HORN_FOLD(a, k128, _mm512_extracti32x4_epi32(x[3], 1));
    a = HORN_FOLD(a, k128, _mm512_extracti32x4_epi32(x[3], 2));
    a = HORN_FOLD(a, k128, _mm512_extracti32x4_epi32(x[3], 3));
    return horn_fold_rest(a, p, n);
}

/* n >= 64 and a multiple of 16; crc without the final complement. */
__attribute__((target("pclmul,sse4.1")))
static uint32_t horn_fold(uint32_t crc, const unsigned char *p, size_t n) {
    const __m128i k56 = _mm_set_epi64x(0x014a7fe880, 0x01e88ef372);
    const __m128i k12 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i k34 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i a = _mm_loadu_si128((const __m128i *)p);
    __m128i b = _mm_loadu_si128((const __m128i *)(p + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(p + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(p + 48));
    a = _mm_xor_si128(a, _mm_cvtsi32_si128((int)crc));
    p += 64;
    n -= 64;
    if (n >= 192) {                      /* eight at a time: one fold waits for none before it */
        __m128i e = _mm_loadu_si128((const __m128i *)p);
        __m128i f = _mm_loadu_si128((const __m128i *)(p + 16));
        __m128i g = _mm_loadu_si128((const __m128i *)(p + 32));
        __m128i h = _mm_loadu_si128((const __m128i *)(p + 48));
        p += 64;
        n -= 64;
        while (n >= 128) {
            _mm_prefetch((const char *)p + HORN_AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)p + HORN_AHEAD + 64, _MM_HINT_T0);
            a = HORN_FOLD(a, k56, _mm_loadu_si128((const __m128i *)p));
            b = HORN_FOLD(b, k56, _mm_loadu_si128((const __m128i *)(p + 16)));
            c = HORN_FOLD(c, k56, _mm_loadu_si128((const __m128i *)(p + 32)));
            d = HORN_FOLD(d, k56, _mm_loadu_si128((const __m128i *)(p + 48)));
            e = HORN_FOLD(e, k56, _mm_loadu_si128((const __m128i *)(p + 64)));
            f = HORN_FOLD(f, k56, _mm_loadu_si128((const __m128i *)(p + 80)));
            g = HORN_FOLD(g, k56, _mm_loadu_si128((const __m128i *)(p + 96)));
            h = HORN_FOLD(h, k56, _mm_loadu_si128((const __m128i *)(p + 112)));
            p += 128;
            n -= 128;
        }
        a = HORN_FOLD(a, k12, e);
        b = HORN_FOLD(b, k12, f);
        c = HORN_FOLD(c, k12, g);
        d = HORN_FOLD(d, k12, h);
    }
    while (n >= 64) {
        a = HORN_FOLD(a, k12, _mm_loadu_si128((const __m128i *)p));
        b = HORN_FOLD(b, k12, _mm_loadu_si128((const __m128i *)(p + 16)));
        c = HORN_FOLD(c, k12, _mm_loadu_si128((const __m128i *)(p + 32)));
        d = HORN_FOLD(d, k12, _mm_loadu_si128((const __m128i *)(p + 48)));
        p += 64;
        n -= 64;
    }
    a = HORN_FOLD(a, k34, b);
    a = HORN_FOLD(a, k34, c);
    a = HORN_FOLD(a, k34, d);
    return horn_fold_rest(a, p, n);
}
#else
#define HORN_HAS_FOLDING 0
static int horn_can_fold(void) { return 0; }
static int horn_can_fold_wide(void) { return 0; }
static uint32_t horn_fold(uint32_t crc, const unsigned char *p, size_t n) { return crc; }
static uint32_t horn_fold_wide(uint32_t crc, const unsigned char *p, size_t n) { return crc; }
#endif
#endif
