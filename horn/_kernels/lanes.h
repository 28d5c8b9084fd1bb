/* Vectors of one dtype and level, and what of functions.h is computed in them: included by strips.h.
 *
 * A vector has LN numbers. A function of n vectors, a constant up to 8, does one stage of all before
 * the next: a processor looks only so far ahead, and each stage waits for the one before.
 */
#define TILE_BYTES (16 << LEVEL)
#define LN ((int64_t)(TILE_BYTES / sizeof(REAL)))
#if IS_F32
#define WHOLE int32_t
#define SIGN_BIT INT32_MIN
#else
#define WHOLE int64_t
#define SIGN_BIT INT64_MIN
#endif
typedef REAL K(vec_t) __attribute__((vector_size(TILE_BYTES)));
typedef WHOLE K(bits_t) __attribute__((vector_size(TILE_BYTES)));
#define VEC_T K(vec_t)
#define BITS_T K(bits_t)

static inline VEC_T K(vec_load)(const REAL *p) { VEC_T v; memcpy(&v, p, sizeof v); return v; }
static inline void K(vec_store)(REAL *p, VEC_T v) { memcpy(p, &v, sizeof v); }
/* The first n lanes, for n up to LN: a mask; of p, others 0; to p, which has no more room. */
static const WHOLE K(FIRST)[2 * TILE_BYTES / sizeof(REAL)] = {
    [0 ... TILE_BYTES / sizeof(REAL) - 1] = -1};
static inline BITS_T K(vec_first)(int64_t n) {
    BITS_T here; memcpy(&here, K(FIRST) + LN - n, sizeof here);
    return here;
}
static inline VEC_T K(part_load)(const REAL *p, int64_t n) {
#if LEVEL == 2 && IS_F32
    return (VEC_T)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif LEVEL == 2
    return (VEC_T)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
#elif LEVEL == 1 && IS_F32
    return (VEC_T)_mm256_maskload_ps(p, (__m256i)K(vec_first)(n));
#elif LEVEL == 1
    return (VEC_T)_mm256_maskload_pd(p, (__m256i)K(vec_first)(n));
#else
    REAL some[TILE_BYTES / sizeof(REAL)] = {0};
    memcpy(some, p, n * sizeof(REAL));
    return K(vec_load)(some);
#endif
}
static inline void K(part_store)(REAL *p, VEC_T v, int64_t n) {
#if LEVEL == 2 && IS_F32
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#elif LEVEL == 2
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)v);
#elif LEVEL == 1                        /* masked stores of AVX2 are slow on some processors */
    const REAL *from = (const REAL *)&v;
    int64_t at = 0;
    if (IS_F32 && n & 4) { memcpy(p, from, 4 * sizeof(REAL)); at = 4; }
    if (n & 2) { memcpy(p + at, from + at, 2 * sizeof(REAL)); at += 2; }
    if (n & 1) p[at] = from[at];
#else
    memcpy(p, &v, n * sizeof(REAL));
#endif
}
static inline VEC_T K(vec_of)(REAL x) { return x - (VEC_T){0}; }
static inline VEC_T K(vec_pick)(BITS_T where, VEC_T a, VEC_T b) {
    return (VEC_T)((where & (BITS_T)a) | (~where & (BITS_T)b));
}
#if LEVEL == 2 && IS_F32
#define VEC_MAX(a, b) ((VEC_T)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define VEC_MIN(a, b) ((VEC_T)_mm512_min_ps((__m512)(a), (__m512)(b)))
#elif LEVEL == 2
#define VEC_MAX(a, b) ((VEC_T)_mm512_max_pd((__m512d)(a), (__m512d)(b)))
#define VEC_MIN(a, b) ((VEC_T)_mm512_min_pd((__m512d)(a), (__m512d)(b)))
#elif LEVEL == 1 && IS_F32
#define VEC_MAX(a, b) ((VEC_T)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define VEC_MIN(a, b) ((VEC_T)_mm256_min_ps((__m256)(a), (__m256)(b)))
#elif LEVEL == 1
#define VEC_MAX(a, b) ((VEC_T)_mm256_max_pd((__m256d)(a), (__m256d)(b)))
#define VEC_MIN(a, b) ((VEC_T)_mm256_min_pd((__m256d)(a), (__m256d)(b)))
#elif defined(HORN_X86) && IS_F32
#define VEC_MAX(a, b) ((VEC_T)_mm_max_ps((__m128)(a), (__m128)(b)))
#define VEC_MIN(a, b) ((VEC_T)_mm_min_ps((__m128)(a), (__m128)(b)))
#elif defined(HORN_X86)
#define VEC_MAX(a, b) ((VEC_T)_mm_max_pd((__m128d)(a), (__m128d)(b)))
#define VEC_MIN(a, b) ((VEC_T)_mm_min_pd((__m128d)(a), (__m128d)(b)))
#else
#define VEC_MAX(a, b) K(vec_pick)((a) > (b), a, b)
#define VEC_MIN(a, b) K(vec_pick)((a) < (b), a, b)
#endif
/* The number itself, opaque to the compiler: a product is not fused with the next operation. */
static inline VEC_T K(rounded)(VEC_T v) {
#if LEVEL > 0
    __asm__("" : "+v"(v));
#elif defined(HORN_X86)
    __asm__("" : "+x"(v));
#elif defined(__aarch64__)
    __asm__("" : "+w"(v));
#endif
    return v;
}

/* ---- functions ---- */
#define VECTORS(NAME) static inline __attribute__((always_inline)) void K(NAME)(VEC_T *v, const int n)
#define OF_ALL(...) _Pragma("GCC unroll 8") for (int k = 0; k < n; k++) { __VA_ARGS__; }
#if LEVEL > 0 && IS_F32
typedef uint32_t K(words_t) __attribute__((vector_size(TILE_BYTES)));

/* e**x = 2**n 2**(j/8) e**r with |r| < 0.044: three products fewer than exp_f32, for a table that
 * is in a register. The scale is one instruction or two factors, with the same bits. */
VECTORS(exp_all) {
    VEC_T t[8], p[8];
    OF_ALL(v[k] = VEC_MAX(K(vec_of)(-104.0f), VEC_MIN(K(vec_of)(89.0f), v[k])))      /* NaN stays */
    OF_ALL(t[k] = v[k] * 1.44269504088896341f + MAGIC_EIGHTHS)
    OF_ALL(const VEC_T m = t[k] - MAGIC_EIGHTHS;
           v[k] = v[k] - m * 0.693359375f + m * 2.12194440e-4f)
    OF_ALL(p[k] = EXP_SHORT_F32(v[k]) * (v[k] * v[k]) + v[k])
#if LEVEL == 2
    const __m512i roots = _mm512_loadu_si512(ROOTS_OF_2);
    OF_ALL(const VEC_T s = (VEC_T)_mm512_permutexvar_epi32((__m512i)t[k], roots);
           const __m512 m = (__m512)(t[k] - MAGIC_EIGHTHS);         /* n + j/8, of which n is taken */
           v[k] = (VEC_T)_mm512_scalef_ps((__m512)(p[k] * s + s), m))
#else
    const __m256i roots = _mm256_loadu_si256((const __m256i *)ROOTS_OF_2);
    OF_ALL(const K(words_t) j = (K(words_t))_mm256_permutevar8x32_epi32(roots, (__m256i)t[k]);
           const K(words_t) half = ((K(words_t))t[k] << 19) & 0x7f800000;
           const VEC_T s = (VEC_T)(j - 0x3f800000 + half);
           v[k] = (p[k] * s + s) * (VEC_T)((((K(words_t))t[k] << 20) & 0xff800000) - half))
#endif
}
/* tanh_f32 of every lane: not every compiler makes vectors of a loop. */
VECTORS(tanh_all) {
    VEC_T y[8], t[8], r[8], p[8];
    OF_ALL(y[k] = VEC_MIN(K(vec_of)(9.1f), (VEC_T)((BITS_T)v[k] & ~SIGN_BIT)))
    OF_ALL(t[k] = y[k] * 2.88539008177792681f + MAGIC_F32)
    OF_ALL(const VEC_T m = t[k] - MAGIC_F32;
           r[k] = 2.0f * y[k] - m * 0.693359375f + m * 2.12194440e-4f)
    OF_ALL(p[k] = EXP_POLY_F32(r[k]) * (r[k] * r[k]) + r[k])
    OF_ALL(const VEC_T s = (VEC_T)(((K(words_t))t[k] << 23) + 0x3f800000); p[k] = p[k] * s + (s - 1.0f))
    OF_ALL(v[k] = (VEC_T)((BITS_T)(p[k] / (p[k] + 2.0f)) | ((BITS_T)v[k] & SIGN_BIT)))
}
VECTORS(sigmoid_all) {
    OF_ALL(v[k] = -v[k])
    K(exp_all)(v, n);
    OF_ALL(v[k] = 1.0f / (1.0f + v[k]))
}
#else
#define EACH_LANE(NAME) \
VECTORS(NAME##_all) { \
    REAL a[8 * TILE_BYTES / sizeof(REAL)]; \
    memcpy(a, v, n * sizeof *v); \
    for (int k = 0; k < n * (int)LN; k++) a[k] = F(NAME)(a[k]); \
    memcpy(v, a, n * sizeof *v); \
}
EACH_LANE(exp)
EACH_LANE(tanh)
EACH_LANE(sigmoid)
#endif
