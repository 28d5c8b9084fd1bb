/* AVX-512 in plain C, as far as horn's products of float32 use it (wide.h, thin.h, live.h): in place
 * of the compiler's header, so that a processor without AVX-512 can test them. A load or store that
 * needs an aligned address ends the program at another one. */
#ifndef AVX512_IN_C
#define AVX512_IN_C
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct { float at[16]; } __attribute__((aligned(64))) __m512;
typedef struct { int32_t at[16]; } __attribute__((aligned(64))) __m512i;
typedef struct { int16_t at[16]; } __m256i;
typedef uint16_t __mmask16;

#define _CMP_NEQ_UQ 4
#define _MM_HINT_T0 3
#define _MM_HINT_T1 2
#define _mm_prefetch(p, hint) ((void)(p))
#define EACH for (int i = 0; i < 16; i++)
#define OF_FLOATS(name, parameters, value) \
    static inline __m512 name parameters { __m512 r; EACH r.at[i] = value; return r; }
#define OF_INTS(name, parameters, value) \
    static inline __m512i name parameters { __m512i r; EACH r.at[i] = value; return r; }

static inline const void *aligned(const void *p) { if ((uintptr_t)p & 63) __builtin_trap(); return p; }

OF_FLOATS(_mm512_setzero_ps, (void), 0.0f)
OF_FLOATS(_mm512_set1_ps, (float x), x)
OF_FLOATS(_mm512_loadu_ps, (const void *p), ((const float *)p)[i])
OF_FLOATS(_mm512_add_ps, (__m512 a, __m512 b), a.at[i] + b.at[i])
OF_FLOATS(_mm512_mul_ps, (__m512 a, __m512 b), a.at[i] * b.at[i])
OF_FLOATS(_mm512_fmadd_ps, (__m512 a, __m512 b, __m512 c), fmaf(a.at[i], b.at[i], c.at[i]))
OF_FLOATS(_mm512_maskz_loadu_ps, (__mmask16 m, const void *p), m >> i & 1 ? ((const float *)p)[i] : 0.0f)
OF_FLOATS(_mm512_unpacklo_ps, (__m512 a, __m512 b), (i & 1 ? b : a).at[(i & ~3) + (i >> 1 & 1)])
OF_FLOATS(_mm512_unpackhi_ps, (__m512 a, __m512 b), (i & 1 ? b : a).at[(i & ~3) + 2 + (i >> 1 & 1)])
OF_FLOATS(_mm512_shuffle_ps, (__m512 a, __m512 b, int which),
          (i & 2 ? b : a).at[(i & ~3) + (which >> 2 * (i & 3) & 3)])
OF_FLOATS(_mm512_shuffle_f32x4, (__m512 a, __m512 b, int which),
          (i & 8 ? b : a).at[4 * (which >> 2 * (i / 4) & 3) + (i & 3)])
OF_FLOATS(_mm512_permutex2var_ps, (__m512 a, __m512i which, __m512 b),
          (which.at[i] & 16 ? b : a).at[which.at[i] & 15])
OF_INTS(_mm512_set1_epi32, (int32_t x), x)
OF_INTS(_mm512_add_epi32, (__m512i a, __m512i b), a.at[i] + b.at[i])
#define _mm512_setr_epi32(...) ((__m512i){{__VA_ARGS__}})
#define _mm512_load_ps(p) _mm512_loadu_ps(aligned(p))
#define _mm512_store_ps(p, v) _mm512_storeu_ps((void *)aligned(p), v)

/* The lanes of a mask, side by side; and lanes that lie side by side, in those of a mask. */
#define COMPRESS(name, type) \
    static inline type name(__mmask16 m, type a) { \
        type r = {{0}}; int n = 0; EACH if (m >> i & 1) r.at[n++] = a.at[i]; return r; }
COMPRESS(_mm512_maskz_compress_ps, __m512)
COMPRESS(_mm512_maskz_compress_epi32, __m512i)
static inline __m512i _mm512_maskz_expand_epi32(__mmask16 m, __m512i a) {
    __m512i r = {{0}}; int n = 0; EACH if (m >> i & 1) r.at[i] = a.at[n++]; return r;
}

static inline void _mm512_storeu_ps(void *p, __m512 v) { memcpy(p, v.at, sizeof v.at); }
static inline void _mm512_mask_storeu_ps(void *p, __mmask16 m, __m512 v) {
    EACH if (m >> i & 1) ((float *)p)[i] = v.at[i];
}
static inline __mmask16 unequal(__m512 a, __m512 b) {
    __mmask16 r = 0; EACH r |= (__mmask16)((a.at[i] != b.at[i]) << i); return r;
}
#define _mm512_cmp_ps_mask(a, b, how) unequal(a, b)     /* how: _CMP_NEQ_UQ, nothing else */
static inline __m256i _mm512_cvtepi32_epi16(__m512i a) {
    __m256i r; EACH r.at[i] = (int16_t)a.at[i]; return r;
}
static inline void _mm256_storeu_si256(__m256i *p, __m256i v) { memcpy(p, &v, sizeof v); }
#endif
