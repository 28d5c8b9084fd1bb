/* Loops over strips: included once per dtype and processor level (see level.h).
 *
 * REAL, IS_F32, LEVEL and K(name) come from the includer. A strip is STRIP_BYTES of one value,
 * seen as r rows of axis a1 by c columns of axis a2. Every loop here is branch-free over a strip
 * and may be called with the destination equal to a source, never with a shifted overlap.
 */
#define STRIP ((int64_t)(STRIP_BYTES / sizeof(REAL)))
#define REAL_TYPE (IS_F32 ? F32 : F64)

#if IS_F32
#define F(name) name##_f32
#define ABS_ fabsf
#define SQRT_ sqrtf
#define FLOOR_ floorf
#define SIN_ sinf
#define COS_ cosf
#define POW_ powf
#define FMOD_ fmodf
#define COPYSIGN_ copysignf
#define SIN_IN SIN_IN_F32
#define POW_IN POW_IN_F32
#define FMOD_IN FMOD_IN_F32
#else
#define F(name) name##_f64
#define ABS_ fabs
#define SQRT_ sqrt
#define FLOOR_ floor
#define SIN_ sin
#define COS_ cos
#define POW_ pow
#define FMOD_ fmod
#define COPYSIGN_ copysign
#define SIN_IN SIN_IN_F64
#define POW_IN POW_IN_F64
#define FMOD_IN FMOD_IN_F64
#endif

/* Python's x // y and x % y from fmod's remainder (Objects/floatobject.c has the rule; for y = 0
 * they are NumPy's). */
static inline REAL K(floordiv_)(REAL x, REAL y, REAL rest) {
    REAL whole = (x - rest) / y;
    whole = (rest != 0) & ((y < 0) != (rest < 0)) ? whole - 1 : whole;
    REAL low = FLOOR_(whole);
    low = whole - low > (REAL)0.5 ? low + 1 : low;
    low = whole == 0 ? COPYSIGN_(0, x / y) : low;
    return y == 0 ? x / y : low;
}
static inline REAL K(mod_)(REAL x, REAL y, REAL rest) {
    (void)x;
    REAL v = (y < 0) != (rest < 0) ? rest + y : rest;
    v = rest == 0 ? COPYSIGN_(0, y) : v;
    return y == 0 ? rest : v;
}

#include "lanes.h"

/* ---- the operations ---- */
#define UNARY(E) { IVDEP for (int64_t i = 0; i < n; i++) { REAL x = a[i]; d[i] = (REAL)(E); } break; }
#define BINARY(E) \
    { IVDEP for (int64_t i = 0; i < n; i++) { REAL x = a[i], y = b[i]; d[i] = (REAL)(E); } break; }
/* E where no vectors of functions are. */
#if LEVEL > 0 && IS_F32
#define UNARY_ALL(E, V) { \
    int64_t i = 0; \
    for (; i + LN <= n; i += LN) { VEC_T v = K(vec_load)(a + i); V(&v, 1); K(vec_store)(d + i, v); } \
    if (i < n) { VEC_T v = K(part_load)(a + i, n - i); V(&v, 1); K(part_store)(d + i, v, n - i); } \
    break; }
#else
#define UNARY_ALL(E, V) UNARY(E)
#endif
/* The same where an operand may be one number for the whole strip. */
#define BINARY_ONE(E) { \
    if (one_of & 1) { const REAL x = *a; \
        IVDEP for (int64_t i = 0; i < n; i++) { REAL y = b[i]; d[i] = (REAL)(E); } } \
    else if (one_of & 2) { const REAL y = *b; \
        IVDEP for (int64_t i = 0; i < n; i++) { REAL x = a[i]; d[i] = (REAL)(E); } } \
    else BINARY(E) \
    break; }
#define TERNARY(E) \
    { IVDEP for (int64_t i = 0; i < n; i++) \
        { REAL x = a[i], y = b[i], z = c[i]; d[i] = (REAL)(E); } break; }

/* E where IN holds, computed in vectors; elsewhere libm's REST. */
#define SOME 64
#define UNARY_IN(E, IN, REST) { \
    for (int64_t at = 0; at < n; at += SOME) { \
        const int64_t m = n - at < SOME ? n - at : SOME; \
        REAL xs[SOME]; int is_out = 0; \
        memcpy(xs, a + at, m * sizeof(REAL)); \
        IVDEP for (int64_t i = 0; i < m; i++) { \
            REAL x = xs[i]; is_out |= !(IN); d[at + i] = (REAL)(E); } \
        if (is_out) for (int64_t i = 0; i < m; i++) { \
            REAL x = xs[i]; if (!(IN)) d[at + i] = (REAL)(REST); } \
    } \
    break; }
#define BINARY_IN(E, IN, REST) { \
    for (int64_t at = 0; at < n; at += SOME) { \
        const int64_t m = n - at < SOME ? n - at : SOME; \
        REAL xs[SOME], ys[SOME]; int is_out = 0; \
        memcpy(xs, a + at, m * sizeof(REAL)); memcpy(ys, b + at, m * sizeof(REAL)); \
        IVDEP for (int64_t i = 0; i < m; i++) { \
            REAL x = xs[i], y = ys[i]; is_out |= !(IN); d[at + i] = (REAL)(E); } \
        if (is_out) for (int64_t i = 0; i < m; i++) { \
            REAL x = xs[i], y = ys[i]; if (!(IN)) d[at + i] = (REAL)(REST); } \
    } \
    break; }

/* Sine and cosine of the same numbers: what is near them in both, pi/2 taken away, once. */
static void K(sine_and_cosine)(REAL *sine, REAL *cosine, const REAL *a, int64_t n) {
    for (int64_t at = 0; at < n; at += SOME) {
        const int64_t m = n - at < SOME ? n - at : SOME;
        REAL xs[SOME]; int is_out = 0;
        memcpy(xs, a + at, m * sizeof(REAL));
        IVDEP for (int64_t i = 0; i < m; i++) {
            REAL x = xs[i]; is_out |= !(SIN_IN(x));
            const F(waves_type) w = F(waves)(x);
            sine[at + i] = F(sine)(w, 0); cosine[at + i] = F(sine)(w, 1);
        }
        if (is_out) for (int64_t i = 0; i < m; i++) {
            REAL x = xs[i];
            if (!(SIN_IN(x))) { sine[at + i] = SIN_(x); cosine[at + i] = COS_(x); }
        }
    }
}
static inline int K(are_sine_and_cosine)(const op_t *o) {
    return o[0].op == OP_SIN && o[1].op == OP_COS && o[0].a == o[1].a;
}

/* Whether an operation accepts one number for a strip, as one of two operands. */
static inline int K(takes_one)(int op) {
    return op >= OP_ADD && op <= OP_DIV;
}

/* one_of : 1, 2 : *a, *b is one number for all. */
static void K(apply)(int op, REAL *d, const REAL *a, const REAL *b, const REAL *c, int64_t n,
                     int one_of) {
    const REAL one = 1, zero = 0;
    switch (op) {
    case OP_COPY: UNARY(x)
    case OP_NEG: UNARY(-x)
    case OP_ABS: UNARY(ABS_(x))
    case OP_SQRT: UNARY(SQRT_(x))
    case OP_EXP: UNARY_ALL(F(exp)(x), K(exp_all))
    case OP_LOG: UNARY(F(log)(x))
    case OP_LOG1P: UNARY(F(log1p)(x))
    case OP_EXPM1: UNARY(F(expm1)(x))
    case OP_TANH: UNARY_ALL(F(tanh)(x), K(tanh_all))
    case OP_SIGMOID: UNARY_ALL(F(sigmoid)(x), K(sigmoid_all))
    case OP_SOFTPLUS: UNARY(F(softplus)(x))
    case OP_SIN: UNARY_IN(F(sine)(F(waves)(x), 0), SIN_IN(x), SIN_(x))
    case OP_COS: UNARY_IN(F(sine)(F(waves)(x), 1), SIN_IN(x), COS_(x))
    case OP_FLOOR: UNARY(FLOOR_(x))
    case OP_SIGN: UNARY(x > zero ? one : (x < zero ? -one : x))
    case OP_NOT: UNARY(x == zero ? one : zero)
    case OP_RELU: UNARY(x <= zero ? zero : x)
    case OP_ERF: UNARY(F(erf)(x))
    case OP_ERFC: UNARY(F(erfc)(x))
    case OP_ATAN: UNARY(F(atan)(x))
    case OP_ADD: BINARY_ONE(x + y)
    case OP_SUB: BINARY_ONE(x - y)
    case OP_MUL: BINARY_ONE(x * y)
    case OP_DIV: BINARY_ONE(x / y)
    case OP_MIN: BINARY(x < y || x != x ? x : y)
    case OP_MAX: BINARY(x > y || x != x ? x : y)
    case OP_POW: BINARY_IN(F(pow)(x, y), POW_IN(x, y), POW_(x, y))
    case OP_ATAN2: BINARY(F(atan2)(x, y))
    case OP_FLOORDIV: BINARY_IN(K(floordiv_)(x, y, F(fmod)(x, y)), FMOD_IN(x, y),
                                 K(floordiv_)(x, y, FMOD_(x, y)))
    case OP_MOD: BINARY_IN(K(mod_)(x, y, F(fmod)(x, y)), FMOD_IN(x, y), K(mod_)(x, y, FMOD_(x, y)))
    case OP_HALFWAY: BINARY(F(halfway)(x, y))
    case OP_LT: BINARY(x < y ? one : zero)
    case OP_LE: BINARY(x <= y ? one : zero)
    case OP_GT: BINARY(x > y ? one : zero)
    case OP_GE: BINARY(x >= y ? one : zero)
    case OP_EQ: BINARY(x == y ? one : zero)
    case OP_NE: BINARY(x != y ? one : zero)
    case OP_AND: BINARY((x != zero) & (y != zero) ? one : zero)
    case OP_OR: BINARY((x != zero) | (y != zero) ? one : zero)
    case OP_SELECT: TERNARY(x != zero ? y : z)
    case OP_FMA: TERNARY(x * y + z)
    }
}

/* ---- strips in and out ---- */
static inline int64_t K(place)(const view_t *v, int axis, int64_t i) {
    return (v->index[axis] ? (int64_t)v->index[axis][i] : i) * v->stride[axis];
}

#define EACH_DTYPE(X) \
    case F32: X(float) \
    case F64: X(double) \
    case U8: X(uint8_t) \
    case I32: X(int32_t) \
    case I64: X(int64_t)
#define LOAD_ROW(T) { \
    const T *p = (const T *)v->data + off; \
    if (x2 && s2 == 1) { const int32_t *x = x2 + i2; \
        for (int64_t j = 0; j < c; j++) to[j] = (REAL)p[x[j]]; } \
    else if (x2) { for (int64_t j = 0; j < c; j++) to[j] = (REAL)p[x2[i2 + j] * s2]; } \
    else if (s2 == 0) { REAL q = (REAL)p[0]; for (int64_t j = 0; j < c; j++) to[j] = q; } \
    else if (s2 == 1) { p += i2; for (int64_t j = 0; j < c; j++) to[j] = (REAL)p[j]; } \
    else { p += i2 * s2; for (int64_t j = 0; j < c; j++) to[j] = (REAL)p[j * s2]; } \
    break; }

#if LEVEL == 2 && IS_F32
/* Live places as bits: whole vectors are read and squeezed, or spread and written under the mask. */
#define LIVE_BITS(v) ((v)->mask[2] && (v)->stride[2] == 1 && (v)->dtype == F32 && (v)->index[2])
static inline __mmask16 K(bits16)(const view_t *v, int64_t at, int64_t first, int64_t last) {
    uint32_t m = v->mask[2][at];
    if (at == first >> 4) m &= 0xffffu << (first & 15);
    if (at == last >> 4) m &= 0xffffu >> (15 - (last & 15));
    return (__mmask16)m;
}
/* `ahead`: the next row, which is prefetched. */
static void K(squeeze)(const view_t *v, const float *p, const float *ahead, float *to, int64_t i2,
                       int64_t c) {
    const int64_t first = v->index[2][i2], last = v->index[2][i2 + c - 1];
    float *end = to + c;
    for (int64_t at = first >> 4; at <= last >> 4; at++) {
        const __mmask16 m = K(bits16)(v, at, first, last);
        _mm_prefetch((const char *)(ahead + 16 * at), _MM_HINT_T0);
        const __m512 x = _mm512_maskz_compress_ps(m, _mm512_maskz_loadu_ps(m, p + 16 * at));
        if (end - to >= 16) _mm512_storeu_ps(to, x);            /* the rest comes next */
        else _mm512_mask_storeu_ps(to, (__mmask16)((1u << (end - to)) - 1), x);
        to += __builtin_popcount(m);
    }
}
static void K(spread)(const view_t *v, float *p, const float *from, int64_t i2, int64_t c) {
    const int64_t first = v->index[2][i2], last = v->index[2][i2 + c - 1];
    for (int64_t at = first >> 4; at <= last >> 4; at++) {
        const __mmask16 m = K(bits16)(v, at, first, last);
        const int n = __builtin_popcount(m);
        const __m512 x = _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), from);
        _mm512_mask_storeu_ps(p + 16 * at, m, _mm512_maskz_expand_ps(m, x));
        from += n;
    }
}
#else
#define LIVE_BITS(v) 0
#endif

static void K(drawn)(const view_t *v, REAL *to, int64_t base, int64_t i1, int64_t r, int64_t i2,
                     int64_t c);

/* Rows of N to 2 N numbers, or of one number each: two copies of N side by side, or overlapping. A
 * loop over so few takes longer to begin than to run. */
#define SHORT_ROWS(N) \
    for (int64_t row = 0; row < r; row++, to += c) { \
        const REAL *from = p + (x1 ? x1[i1 + row] : i1 + row) * s1; \
        if (is_one) for (int j = 0; j < N; j++) to[j] = to[c - N + j] = from[0]; \
        else { \
            memcpy(to, from, N * sizeof(REAL)); \
            memcpy(to + c - N, from + c - N, N * sizeof(REAL)); \
        } \
    } \
    return;
static inline __attribute__((always_inline)) void K(short_rows)(
    const view_t *v, REAL *restrict to, const REAL *p, int64_t i1, int64_t r, int64_t c,
    const int is_one) {
    const int64_t s1 = v->stride[1]; const int32_t *x1 = v->index[1];
    if (c >= 16) { SHORT_ROWS(16) }
    if (c >= 8) { SHORT_ROWS(8) }
    if (c >= 4) { SHORT_ROWS(4) }
    SHORT_ROWS(2)
}

static void K(fetch)(const view_t *v, REAL *restrict to, int64_t i0, int64_t i1, int64_t r,
                     int64_t i2, int64_t c, int64_t row_start, int64_t n1) {
    const int64_t s2 = v->stride[2]; const int32_t *x2 = v->index[2];
    const int64_t start = K(place)(v, 0, i0);
    (void)n1;
    if (c > 1 && c <= 32 && v->dtype == REAL_TYPE && !x2 && (s2 == 0 || s2 == 1)) {
        const REAL *p = (const REAL *)v->data + start + i2 * s2;
        if (s2) K(short_rows)(v, to, p, i1, r, c, 0);
        else K(short_rows)(v, to, p, i1, r, c, 1);
        return;
    }
    if (c == 1 && v->dtype == REAL_TYPE) {      /* numbers, not rows */
        const REAL *p = (const REAL *)v->data + start + K(place)(v, 2, i2);
        const int64_t s1 = v->stride[1]; const int32_t *x1 = v->index[1];
        if (x1) for (int64_t row = 0; row < r; row++) to[row] = p[x1[i1 + row] * s1];
        else for (int64_t row = 0; row < r; row++) to[row] = p[(i1 + row) * s1];
        return;
    }
    if (v->dtype == DRAWN) {
        K(drawn)(v, to, (int64_t)(intptr_t)v->data + start, i1, r, i2, c);
        return;
    }
    for (int64_t row = 0; row < r; row++, to += c) {
        int64_t off = start + K(place)(v, 1, i1 + row);
#if LEVEL == 2 && IS_F32
        if (LIVE_BITS(v) && c > 0) {
            const int64_t next = i1 + row + 1 < n1 ? start + K(place)(v, 1, i1 + row + 1) : off;
            K(squeeze)(v, (const float *)v->data + off, (const float *)v->data + next, to, i2, c);
            continue;
        }
#endif
        switch (v->dtype) {
        EACH_DTYPE(LOAD_ROW)
        case IOTA: {
            int64_t base = (int64_t)(intptr_t)v->data + off;
            if (v->local) base -= row_start * v->stride[1];
            if (x2) for (int64_t j = 0; j < c; j++) to[j] = (REAL)(base + x2[i2 + j] * s2);
            else for (int64_t j = 0; j < c; j++) to[j] = (REAL)(base + (i2 + j) * s2);
            break; }
        }
    }
}

#define STORE_ROW(T) { \
    T *p = (T *)v->data + off; \
    if (x2 && s2 == 1) { const int32_t *x = x2 + i2; \
        IVDEP for (int64_t j = 0; j < c; j++) p[x[j]] = (T)from[j]; } \
    else if (x2) { for (int64_t j = 0; j < c; j++) p[x2[i2 + j] * s2] = (T)from[j]; } \
    else if (s2 == 1) { p += i2; for (int64_t j = 0; j < c; j++) p[j] = (T)from[j]; } \
    else { p += i2 * s2; for (int64_t j = 0; j < c; j++) p[j * s2] = (T)from[j]; } \
    break; }

static void K(put)(const view_t *v, const REAL *restrict from, int64_t i0, int64_t i1, int64_t r,
                   int64_t i2, int64_t c) {
    const int64_t s2 = v->stride[2]; const int32_t *x2 = v->index[2];
    const int64_t start = K(place)(v, 0, i0);
    for (int64_t row = 0; row < r; row++, from += c) {
        int64_t off = start + K(place)(v, 1, i1 + row);
#if LEVEL == 2 && IS_F32
        if (LIVE_BITS(v) && c > 0) {
            K(spread)(v, (float *)v->data + off, from, i2, c);
            continue;
        }
#endif
        switch (v->dtype) {
        EACH_DTYPE(STORE_ROW)
        }
    }
}

static inline double K(read)(const view_t *v, int64_t off) {
    switch (v->dtype) {
    case F32: return ((const float *)v->data)[off];
    case F64: return ((const double *)v->data)[off];
    case U8: return ((const uint8_t *)v->data)[off];
    case I32: return ((const int32_t *)v->data)[off];
    default: return (double)((const int64_t *)v->data)[off];
    }
}
static inline void K(write)(const view_t *v, int64_t off, double x) {
    switch (v->dtype) {
    case F32: ((float *)v->data)[off] = (float)x; break;
    case F64: ((double *)v->data)[off] = x; break;
    case U8: ((uint8_t *)v->data)[off] = (uint8_t)x; break;
    case I32: ((int32_t *)v->data)[off] = (int32_t)x; break;
    case I64: ((int64_t *)v->data)[off] = (int64_t)x; break;
    }
}

/* ---- reductions along a strip: 32 lanes, then double ---- */
#define FOLD_LANES 32
static inline double K(sum_lanes)(REAL lane[FOLD_LANES]) {
    for (int l = 0; l < FOLD_LANES / 2; l++) lane[l] += lane[l + FOLD_LANES / 2];
    for (int l = 0; l < FOLD_LANES / 4; l++) lane[l] += lane[l + FOLD_LANES / 4];
    for (int l = 0; l < FOLD_LANES / 8; l++) lane[l] += lane[l + FOLD_LANES / 8];
    return ((double)lane[0] + lane[2]) + ((double)lane[1] + lane[3]);
}
static double K(sum_row)(const REAL *a, int64_t n) {
    double total = 0;
    int64_t i = 0;
    if (n >= FOLD_LANES) {
        REAL lane[FOLD_LANES];
        for (int l = 0; l < FOLD_LANES; l++) lane[l] = a[l];
        for (i = FOLD_LANES; i + FOLD_LANES <= n; i += FOLD_LANES)
            for (int l = 0; l < FOLD_LANES; l++) lane[l] += a[i + l];
        total = K(sum_lanes)(lane);
    }
    double odd = 0;
    for (; i + 2 <= n; i += 2) { total += a[i]; odd += a[i + 1]; }
    if (i < n) total += a[i];
    return total + odd;
}
/* In double throughout: products of factors near 0 underflow in float. */
static double K(prod_row)(const REAL *a, int64_t n) {
    enum { WIDE = 16 };
    double lane[WIDE], total = 1;
    int64_t i = 0;
    for (int l = 0; l < WIDE; l++) lane[l] = 1;
    for (; i + WIDE <= n; i += WIDE)
        for (int l = 0; l < WIDE; l++) lane[l] *= a[i + l];
    for (; i < n; i++) total *= a[i];
    for (int l = 0; l < WIDE / 2; l++) lane[l] *= lane[l + WIDE / 2];
    for (int l = 0; l < WIDE / 4; l++) lane[l] *= lane[l + WIDE / 4];
    return total * ((lane[0] * lane[2]) * (lane[1] * lane[3]));
}
/* Of the two the better one, and NaN if one is. */
#define BEST_OF(x, BETTER, y) (((x) BETTER (y)) | ((x) != (x)) ? (x) : (y))
#define EXTREME_ROW(NAME, BETTER) \
static REAL K(NAME)(const REAL *a, int64_t n, REAL best) { \
    int64_t i = 0; \
    if (n >= FOLD_LANES) { \
        REAL lane[FOLD_LANES]; \
        for (int l = 0; l < FOLD_LANES; l++) lane[l] = a[l]; \
        for (i = FOLD_LANES; i + FOLD_LANES <= n; i += FOLD_LANES) \
            for (int l = 0; l < FOLD_LANES; l++) lane[l] = BEST_OF(lane[l], BETTER, a[i + l]); \
        for (int l = 0; l < FOLD_LANES / 2; l++) \
            lane[l] = BEST_OF(lane[l], BETTER, lane[l + FOLD_LANES / 2]); \
        for (int l = 0; l < FOLD_LANES / 4; l++) \
            lane[l] = BEST_OF(lane[l], BETTER, lane[l + FOLD_LANES / 4]); \
        for (int l = 0; l < FOLD_LANES / 8; l++) \
            lane[l] = BEST_OF(lane[l], BETTER, lane[l + FOLD_LANES / 8]); \
        for (int l = 0; l < FOLD_LANES / 8; l++) best = BEST_OF(best, BETTER, lane[l]); \
    } \
    for (; i < n; i++) best = BEST_OF(best, BETTER, a[i]); \
    return best; \
}
EXTREME_ROW(max_row, >)
EXTREME_ROW(min_row, <)
/* Whether x takes the place of the largest so far: of equals the first stays, as does NaN. */
#define IS_ABOVE(x, best) (!((x) <= (best)) & ((best) == (best)))

/* The running value of one reduction; the monoid decides which member is used. */
typedef struct { double sum; REAL best; int64_t where; } K(acc_t);

static inline K(acc_t) K(start)(int monoid) {
    K(acc_t) s = {0, 0, -1};
    if (monoid == R_PROD || monoid == R_ALL) s.sum = 1;
    if (monoid == R_MAX || monoid == R_ARGMAX) s.best = -(REAL)INFINITY;
    if (monoid == R_MIN) s.best = (REAL)INFINITY;
    return s;
}
static void K(fold_row)(int monoid, K(acc_t) *s, const REAL *a, int64_t n, int64_t first) {
    switch (monoid) {
    case R_SUM: s->sum += K(sum_row)(a, n); break;
    case R_PROD: s->sum *= K(prod_row)(a, n); break;
    case R_MAX: s->best = K(max_row)(a, n, s->best); break;
    case R_MIN: s->best = K(min_row)(a, n, s->best); break;
    case R_ANY: {
        int any = s->sum != 0;
        for (int64_t i = 0; i < n; i++) any |= a[i] != 0;
        s->sum = any;
        break; }
    case R_ALL: {
        int all = s->sum != 0;
        for (int64_t i = 0; i < n; i++) all &= a[i] != 0;
        s->sum = all;
        break; }
    case R_ARGMAX: {
        if (n == 0) break;
        REAL best = K(max_row)(a, n, -(REAL)INFINITY);
        if (s->where >= 0 && !IS_ABOVE(best, s->best)) break;
        int64_t i = 0;
        while (a[i] < best || (best != best && a[i] == a[i])) i++;
        s->best = best; s->where = first + i;
        break; }
    }
}
static void K(finish_any)(const loop_t *l, const view_t *out, int64_t off, int64_t off2,
                          K(acc_t) s) {
    double v = s.sum;
    if (l->reduce == R_MAX || l->reduce == R_MIN) v = s.best;
    if (l->reduce == R_ARGMAX) {
        int64_t offset = (int64_t)l->consts[l->n_const].factor;
        double where = s.where < 0 ? -1 : (double)(s.where + offset);
        if (l->accumulate) {
            double old = K(read)(out, off), old_best = K(read)(out + 1, off2);
            if (old >= 0 && (s.where < 0 || !IS_ABOVE(s.best, old_best))) return;
        }
        K(write)(out, off, where);
        if (l->n_out > 1) K(write)(out + 1, off2, s.best);
        return;
    }
    if (l->accumulate) {
        double old = K(read)(out, off);
        switch (l->reduce) {
        case R_SUM: v = old + v; break;
        case R_PROD: v = old * v; break;
        case R_MAX: v = old > v || old != old ? old : v; break;
        case R_MIN: v = old < v || old != old ? old : v; break;
        case R_ANY: v = (old != 0) | (v != 0); break;
        case R_ALL: v = (old != 0) & (v != 0); break;
        }
    }
    K(write)(out, off, v);
}

static inline __attribute__((always_inline)) void K(finish)(
    const loop_t *l, const view_t *out, int64_t off, int64_t off2, K(acc_t) s) {
    if (l->reduce == R_SUM && !l->accumulate && out->dtype == REAL_TYPE)
        ((REAL *)out->data)[off] = (REAL)s.sum;
    else K(finish_any)(l, out, off, off2, s);
}
/* The result at i0 along a0 and i along another axis; of two outputs both. */
static inline __attribute__((always_inline)) void K(finish_at)(
    const loop_t *l, const view_t *out, int64_t i0, int axis, int64_t i, K(acc_t) s) {
    K(finish)(l, out, K(place)(out, 0, i0) + K(place)(out, axis, i),
              l->n_out > 1 ? K(place)(out + 1, 0, i0) + K(place)(out + 1, axis, i) : 0, s);
}

/* ---- the loop ---- */
typedef struct {
    const loop_t *l; const domain_t *d; REAL *strip; REAL **value;
    uint8_t *is_one;            /* of each value: one number for the strip, at its pointer */
    int64_t n_receivers;        /* rows of a ragged axis in a tile, from i0 on, with all edges */
} K(machine_t);

/* Whether a view's places along a ragged axis depend on the row. */
static inline int K(by_receiver)(const view_t *v) {
    return v->stride[0] != 0 || v->index[0] || (v->dtype == IOTA && v->local);
}
/* Fetch the edges of many receivers, of c samples. */
static void K(fetch_receivers)(const K(machine_t) *m, const view_t *v, REAL *to, int64_t i0,
                               int64_t c) {
    const int64_t *p = m->d->indptr;
    for (int64_t i = i0; i < i0 + m->n_receivers; to += (p[i + 1] - p[i]) * c, i++)
        if (c == 1 && v->dtype == REAL_TYPE && v->stride[1] == 0 && !v->index[1]) {
            const REAL q = ((const REAL *)v->data)[K(place)(v, 0, i) + K(place)(v, 2, 0)];
            for (int64_t e = 0; e < p[i + 1] - p[i]; e++) to[e] = q;
        } else K(fetch)(v, to, i, p[i], p[i + 1] - p[i], 0, c, p[i], 0);
}

/* Fill a strip with its one number. */
static inline void K(spread_one)(const K(machine_t) *m, int32_t k, int64_t n) {
    REAL *to = m->strip + m->l->slot[k] * STRIP;
    const REAL q = *m->value[k];
    for (int64_t j = 0; j < n; j++) to[j] = q;
    m->value[k] = to; m->is_one[k] = 0;
}

static void K(put_tile)(const K(machine_t) *m, const view_t *v, const REAL *from, int64_t i0,
                        int64_t i1, int64_t r, int64_t i2, int64_t c) {
    const int64_t *p = m->d->indptr;
    if (m->n_receivers <= 1 || !K(by_receiver)(v)) { K(put)(v, from, i0, i1, r, i2, c); return; }
    for (int64_t i = i0; i < i0 + m->n_receivers; from += p[i + 1] - p[i], i++)
        K(put)(v, from, i, p[i], p[i + 1] - p[i], 0, 1);
}

/* Evaluate the program on one tile: every value's strip is in value[] afterwards. */
static void K(tile)(const K(machine_t) *m, int64_t i0, int64_t i1, int64_t r, int64_t i2, int64_t c,
                    int64_t row_start) {
    const loop_t *l = m->l; const domain_t *d = m->d; REAL **value = m->value;
    for (int k = 0; k < l->n_in; k++) {
        const view_t *v = &d->v[k];
        const int is_by_receiver = m->n_receivers > 1 && K(by_receiver)(v);
        if (v->dtype == REAL_TYPE && v->stride[2] == 0 && r == 1 && c > 1 && !is_by_receiver) {
            value[k] = (REAL *)v->data + K(place)(v, 0, i0) + K(place)(v, 1, i1);
            m->is_one[k] = 1;
            continue;
        }
        m->is_one[k] = 0;
        if (is_by_receiver) {
            value[k] = m->strip + l->slot[k] * STRIP;
            K(fetch_receivers)(m, v, value[k], i0, c);
        } else if (v->dtype == REAL_TYPE && !v->index[2] && (v->stride[2] == 1 || c == 1)
            && (r == 1 || (v->stride[1] == c && !v->index[1]))) {
            value[k] = (REAL *)v->data + K(place)(v, 0, i0) + K(place)(v, 1, i1)
                       + i2 * v->stride[2];
        } else {
            value[k] = m->strip + l->slot[k] * STRIP;
            K(fetch)(v, value[k], i0, i1, r, i2, c, row_start, m->d->indptr ? 0 : m->d->n[1]);
        }
    }
    int first = l->n_in + l->n_const;
    uint64_t direct = 0;                        /* of the first 64 outputs */
    if (!l->reduce)
        for (int k = 0; k < l->n_out; k++) {
            const view_t *v = &d->v[l->n_in + k];
            if (k < 64 && v->direct && v->dtype == REAL_TYPE && !v->index[2]
                && !(m->n_receivers > 1 && K(by_receiver)(v)) && (v->stride[2] == 1 || c == 1)
                && (r == 1 || (v->stride[1] == c && !v->index[1]))) {
                value[l->result[k]] = (REAL *)v->data + K(place)(v, 0, i0) + K(place)(v, 1, i1)
                                      + i2 * v->stride[2];
                direct |= (uint64_t)1 << k;
            } else {
                value[l->result[k]] = m->strip + l->slot[l->result[k]] * STRIP;
            }
        }
    /* The operands of the next tile are prefetched, an array per operation or two. */
    const int n_ahead = l->reduce ? 0 : l->n_in + (l->n_out < 64 ? l->n_out : 0);
    int ahead = 0;
    for (int k = 0; k < l->n_ops; k++) {
        const op_t *o = &l->ops[k];
        int one_of = 0;
        for (; ahead < n_ahead && ahead * l->n_ops <= k * n_ahead; ahead++) {
            const int is_out = ahead >= l->n_in;
            const int from = is_out ? l->result[ahead - l->n_in] : ahead;
            if (is_out ? !(direct >> (ahead - l->n_in) & 1) : m->is_one[from]) continue;
            const char *next = (const char *)(value[from] + r * c);
            for (int64_t at = 0; at < r * c * (int64_t)sizeof(REAL); at += 64)
                __builtin_prefetch(next + at, 0, 3);
        }
        if (o->a < l->n_in || o->b < l->n_in || o->c < l->n_in) {   /* a computed value is a whole strip */
            const uint8_t *is_one = m->is_one;
            const int a = o->a < l->n_in && is_one[o->a], b = o->b < l->n_in && is_one[o->b];
            if (a | b | (o->c < l->n_in && is_one[o->c])) {
                if (K(takes_one)(o->op) && a != b) one_of = a ? 1 : 2;
                else {
                    if (a) K(spread_one)(m, o->a, r * c);
                    if (o->b < l->n_in && is_one[o->b]) K(spread_one)(m, o->b, r * c);
                    if (o->c < l->n_in && is_one[o->c]) K(spread_one)(m, o->c, r * c);
                }
            }
        }
        if (k + 1 < l->n_ops && K(are_sine_and_cosine)(o)) {
            K(sine_and_cosine)(value[first + k], value[first + k + 1], value[o->a], r * c);
            k++;
        } else
            K(apply)(o->op, value[first + k], value[o->a], value[o->b], value[o->c], r * c, one_of);
    }
    if (l->reduce && l->result[0] < l->n_in && m->is_one[l->result[0]])
        K(spread_one)(m, l->result[0], r * c);
    if (!l->reduce)
        for (int k = 0; k < l->n_out; k++)
            if (k >= 64 || !(direct >> k & 1))
                K(put_tile)(m, &d->v[l->n_in + k], value[l->result[k]], i0, i1, r, i2, c);
}

/* The running values of reductions side by side, one for each number of a row. */
typedef struct { double *sum; REAL *best; int64_t *where; } K(across_t);

static inline void K(start_across)(const K(across_t) *s, int64_t c, K(acc_t) zero) {
    for (int64_t j = 0; j < c; j++) {
        s->sum[j] = zero.sum; s->best[j] = zero.best; s->where[j] = -1; }
}
typedef REAL K(four_t) __attribute__((vector_size(4 * sizeof(REAL))));
typedef double K(four_sums_t) __attribute__((vector_size(32)));
/* Fold r rows of c numbers; first : the number of the first row. */
static void K(fold_rows)(int monoid, const K(across_t) *s, const REAL *v, int64_t r, int64_t c,
                         int64_t first) {
    double *acc = s->sum; REAL *best = s->best; int64_t *where = s->where;
    if (monoid == R_SUM && c <= 32) {           /* the sums stay in registers */
        int64_t j = 0;
        for (; j + 4 <= c; j += 4) {
            K(four_sums_t) sum; K(four_t) x;
            memcpy(&sum, acc + j, sizeof sum);
            for (int64_t row = 0; row < r; row++) {
                memcpy(&x, v + row * c + j, sizeof x);
                sum += __builtin_convertvector(x, K(four_sums_t));
            }
            memcpy(acc + j, &sum, sizeof sum);
        }
        for (; j < c; j++) for (int64_t row = 0; row < r; row++) acc[j] += v[row * c + j];
        return;
    }
    for (int64_t row = 0; row < r; row++, v += c)
        switch (monoid) {
        case R_SUM: IVDEP for (int64_t j = 0; j < c; j++) acc[j] += v[j]; break;
        case R_PROD: IVDEP for (int64_t j = 0; j < c; j++) acc[j] *= v[j]; break;
        case R_MAX:
            IVDEP for (int64_t j = 0; j < c; j++) {
                REAL x = best[j], y = v[j]; best[j] = (x > y) | (x != x) ? x : y; }
            break;
        case R_MIN:
            IVDEP for (int64_t j = 0; j < c; j++) {
                REAL x = best[j], y = v[j]; best[j] = (x < y) | (x != x) ? x : y; }
            break;
        case R_ANY:
            IVDEP for (int64_t j = 0; j < c; j++) acc[j] = v[j] != 0 ? 1.0 : acc[j];
            break;
        case R_ALL:
            IVDEP for (int64_t j = 0; j < c; j++) acc[j] = v[j] == 0 ? 0.0 : acc[j];
            break;
        case R_ARGMAX:
            for (int64_t j = 0; j < c; j++) {
                int better = (where[j] < 0) | IS_ABOVE(v[j], best[j]);
                best[j] = better ? v[j] : best[j];
                where[j] = better ? first + row : where[j];
            }
            break;
        }
}

/* A loop over a ragged axis and one sample: a tile has all edges of as many receivers as fit into a
 * strip, instead of those of one. Every number is computed as in a tile of one receiver. */
static void K(receivers)(K(machine_t) *m) {
    const loop_t *l = m->l; const domain_t *d = m->d;
    const int64_t *p = d->indptr;
    const view_t *out = &d->v[l->n_in];
    const K(acc_t) zero = K(start)(l->reduce);
    for (int64_t i0 = 0, n; i0 < d->n[0]; i0 += n) {
        const int64_t e0 = p[i0];
        for (n = 1; i0 + n < d->n[0] && p[i0 + n + 1] - e0 <= STRIP;) n++;
        m->n_receivers = n;
        K(acc_t) s = zero;                      /* of a receiver with more edges than fit */
        for (int64_t i1 = e0; i1 < p[i0 + n]; i1 += STRIP) {
            const int64_t r = p[i0 + n] - i1 < STRIP ? p[i0 + n] - i1 : STRIP;
            K(tile)(m, i0, i1, r, 0, 1, e0);
            const REAL *v = m->value[l->result[0]];
            if (d->axis == 1 && n == 1) K(fold_row)(l->reduce, &s, v, r, i1 - e0);
            for (int64_t i = i0; d->axis == 2 && i < i0 + n; i++)
                for (int64_t e = n == 1 ? i1 : p[i]; e < (n == 1 ? i1 + r : p[i + 1]); e++) {
                    K(acc_t) one = zero;
                    if (l->reduce == R_SUM) one.sum += v[e - i1];
                    else K(fold_row)(l->reduce, &one, v + (e - i1), 1, 0);
                    K(finish_at)(l, out, i, 1, e, one);
                }
        }
        for (int64_t i = i0; d->axis == 1 && i < i0 + n; i++) {
            if (n > 1 && p[i + 1] > p[i]) {
                s = zero;
                K(fold_row)(l->reduce, &s, m->value[l->result[0]] + (p[i] - e0), p[i + 1] - p[i], 0);
            } else if (n > 1) s = zero;
            K(finish)(l, out, K(place)(out, 0, i), l->n_out > 1 ? K(place)(out + 1, 0, i) : 0, s);
        }
    }
}

/* The same for several samples, side by side: a tile has `rows` edges. */
static void K(receivers_across)(K(machine_t) *m, const K(across_t) *s, int64_t rows) {
    const loop_t *l = m->l; const domain_t *d = m->d;
    const int64_t *p = d->indptr, c = d->n[2];
    const view_t *out = &d->v[l->n_in];
    const K(acc_t) zero = K(start)(l->reduce);
    for (int64_t i0 = 0, n; i0 < d->n[0]; i0 += n) {
        for (n = 1; i0 + n < d->n[0] && p[i0 + n + 1] - p[i0] <= rows;) n++;
        m->n_receivers = n;
        int64_t i1 = p[i0], r = 0;              /* the tile's first edge, and how many it has */
        for (int64_t i = i0; i < i0 + n; i++) {
            K(start_across)(s, c, zero);
            for (int64_t e = p[i], stop; e < p[i + 1]; e = stop) {
                if (e == i1 + r || !r) {
                    i1 = e; r = p[i0 + n] - i1 < rows ? p[i0 + n] - i1 : rows;
                    K(tile)(m, i0, i1, r, 0, c, p[i0]);
                }
                stop = p[i + 1] < i1 + r ? p[i + 1] : i1 + r;
                K(fold_rows)(l->reduce, s, m->value[l->result[0]] + (e - i1) * c, stop - e, c,
                             e - p[i]);
            }
            for (int64_t j = 0; j < c; j++) {
                K(acc_t) one = {s->sum[j], s->best[j], s->where[j]};
                K(finish_at)(l, out, i, 2, j, one);
            }
        }
    }
}

/* Rows per tile: as many as fit, unless rows that would be used in place had to be copied (a bias,
 * once for each row) at a higher cost than starting each operation once per row. */
static int64_t K(rows_per_tile)(const loop_t *l, const domain_t *d) {
    int64_t c = d->n[2], n_copied = 0;
    if (c > STRIP / 2) return 1;
    const int64_t rows = c > 0 ? STRIP / c : 1;
    if (c >= 64)
        for (int k = 0; k < l->n_in + l->n_out; k++) {
            const view_t *v = &d->v[k];
            const int is_one = v->stride[2] == 0 && d->axis != 1;
            if (v->dtype == REAL_TYPE && (v->stride[2] == 1 || is_one) && !v->index[2]
                && (v->index[1] || v->stride[1] != c)) {
                if (d->axis == 1) return 1;
                n_copied++;
            }
        }
    const int64_t copying = n_copied * (BEGIN_CYCLES / 2 + c * (int64_t)sizeof(REAL) / 32);
    return l->n_ops * BEGIN_CYCLES * (rows - 1) / rows < copying ? 1 : rows;
}

/* weighted_rows of one sample: the same sums in the same order. */
static void K(weighted_numbers)(const loop_t *l, const domain_t *d, const view_t *x,
                                const view_t *w, const view_t *out) {
    for (int64_t i0 = 0; i0 < d->n[0]; i0++) {
        int64_t e0 = d->indptr ? d->indptr[i0] : 0, e1 = d->indptr ? d->indptr[i0 + 1] : d->n[1];
        const REAL *xs = (const REAL *)x->data + K(place)(x, 0, i0) + K(place)(x, 2, 0);
        const REAL *ws = (const REAL *)w->data + K(place)(w, 0, i0) + K(place)(w, 2, 0);
        double sum = 0;
        for (int64_t e = e0; e < e1;) {
            int64_t stop = e + 32 < e1 ? e + 32 : e1;
            REAL part = 0;
            for (; e + 4 <= stop; e += 4) {
                REAL x0 = xs[K(place)(x, 1, e)], x1 = xs[K(place)(x, 1, e + 1)];
                REAL x2 = xs[K(place)(x, 1, e + 2)], x3 = xs[K(place)(x, 1, e + 3)];
                REAL w0 = ws[K(place)(w, 1, e)], w1 = ws[K(place)(w, 1, e + 1)];
                REAL w2 = ws[K(place)(w, 1, e + 2)], w3 = ws[K(place)(w, 1, e + 3)];
                part += w0 * x0 + w1 * x1 + (w2 * x2 + w3 * x3);
            }
            for (; e < stop; e++) part += ws[K(place)(w, 1, e)] * xs[K(place)(x, 1, e)];
            sum += part;
        }
        K(acc_t) s = {sum, 0, -1};
        K(finish)(l, out, K(place)(out, 0, i0) + K(place)(out, 2, 0), 0, s);
    }
}

/* The products of numbers at listed places: the sparse weight gradient of one sample, which begins
 * at 0. */
static void K(listed_products)(const loop_t *l, const domain_t *d, const view_t *x,
                               const view_t *y, const view_t *out) {
    const int32_t *xi = x->index[2], *yi = y->index[2];
    const int64_t xstep = x->stride[2], ystep = y->stride[2];
    const int is_plain = xi && yi && !l->accumulate && out->dtype == REAL_TYPE && !out->index[2]
                         && out->stride[2] == 1;
    for (int64_t i0 = 0; i0 < d->n[0]; i0++) {
        const REAL *xs = (const REAL *)x->data + K(place)(x, 0, i0) + K(place)(x, 1, 0);
        const REAL *ys = (const REAL *)y->data + K(place)(y, 0, i0) + K(place)(y, 1, 0);
        const int64_t start = K(place)(out, 0, i0);
        if (is_plain) {
            REAL *to = (REAL *)out->data + start;
            for (int64_t i2 = 0; i2 < d->n[2]; i2++)
                to[i2] = (REAL)(0.0 + (double)xs[xi[i2] * xstep] * ys[yi[i2] * ystep]);
            continue;
        }
        for (int64_t i2 = 0; i2 < d->n[2]; i2++) {
            double product = (double)xs[K(place)(x, 2, i2)] * ys[K(place)(y, 2, i2)];
            K(acc_t) s = {0.0 + product, 0, -1};
            K(finish)(l, out, start + K(place)(out, 2, i2), 0, s);
        }
    }
}

/* sum over a1 of x[place of a1, a2] * w[a1]: the sparse forward, four messages at a time. */
static int K(weighted_rows)(const loop_t *l, const domain_t *d, double *acc, REAL *part) {
    const view_t *x = &d->v[0], *w = &d->v[1], *out = &d->v[2];
    if (x->dtype != REAL_TYPE || w->dtype != REAL_TYPE) return 0;
    if (d->n[2] == 1) { K(weighted_numbers)(l, d, x, w, out); return 1; }
    if (d->n[1] == 1 && !d->indptr && (x->index[2] || w->index[2]))
        { K(listed_products)(l, d, x, w, out); return 1; }
    if (x->stride[2] != 1 || x->index[2]) { const view_t *s = x; x = w; w = s; }
    if (x->stride[2] != 1 || x->index[2] || w->stride[2] != 0) return 0;
    for (int64_t i0 = 0; i0 < d->n[0]; i0++) {
        int64_t e0 = d->indptr ? d->indptr[i0] : 0, e1 = d->indptr ? d->indptr[i0 + 1] : d->n[1];
        const REAL *xs = (const REAL *)x->data + K(place)(x, 0, i0);
        const REAL *ws = (const REAL *)w->data + K(place)(w, 0, i0);
        for (int64_t i2 = 0; i2 < d->n[2]; i2 += STRIP) {
            int64_t c = d->n[2] - i2 < STRIP ? d->n[2] - i2 : STRIP;
            for (int64_t j = 0; j < c; j++) acc[j] = 0;
            for (int64_t e = e0; e < e1;) {
                int64_t stop = e + 32 < e1 ? e + 32 : e1;   /* short float sums, long double ones */
                for (int64_t j = 0; j < c; j++) part[j] = 0;
                for (; e + 4 <= stop; e += 4) {
                    const REAL *x0 = xs + K(place)(x, 1, e) + i2;
                    const REAL *x1 = xs + K(place)(x, 1, e + 1) + i2;
                    const REAL *x2 = xs + K(place)(x, 1, e + 2) + i2;
                    const REAL *x3 = xs + K(place)(x, 1, e + 3) + i2;
                    REAL w0 = ws[K(place)(w, 1, e)], w1 = ws[K(place)(w, 1, e + 1)];
                    REAL w2 = ws[K(place)(w, 1, e + 2)], w3 = ws[K(place)(w, 1, e + 3)];
                    IVDEP for (int64_t j = 0; j < c; j++)
                        part[j] += w0 * x0[j] + w1 * x1[j] + (w2 * x2[j] + w3 * x3[j]);
                }
                for (; e < stop; e++) {
                    const REAL *x0 = xs + K(place)(x, 1, e) + i2; REAL w0 = ws[K(place)(w, 1, e)];
                    IVDEP for (int64_t j = 0; j < c; j++) part[j] += w0 * x0[j];
                }
                for (int64_t j = 0; j < c; j++) acc[j] += part[j];
            }
            int64_t start = K(place)(out, 0, i0);
            for (int64_t j = 0; j < c; j++) {
                K(acc_t) s = {acc[j], 0, -1};
                K(finish)(l, out, start + K(place)(out, 2, i2 + j), 0, s);
            }
        }
    }
    return 1;
}

/* ---- sums of products of two rows: 32 lanes, then double; a few results side by side, since what
 * follows the lanes takes longer than they do where rows are short ---- */
#if LEVEL > 0 && IS_F32
#define DOTS 4
/* The last four of a result's lanes. */
static inline __attribute__((always_inline)) __m128 K(dot_lanes)(const float *a, const float *b,
                                                                 int64_t whole) {
#if LEVEL == 2
    __m512 low = _mm512_mul_ps(_mm512_loadu_ps(a), _mm512_loadu_ps(b));
    __m512 high = _mm512_mul_ps(_mm512_loadu_ps(a + 16), _mm512_loadu_ps(b + 16));
    for (int64_t i = FOLD_LANES; i < whole; i += FOLD_LANES) {
        low = _mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), low);
        high = _mm512_fmadd_ps(_mm512_loadu_ps(a + i + 16), _mm512_loadu_ps(b + i + 16), high);
    }
    low = _mm512_add_ps(low, high);
    const __m256d upper = _mm512_extractf64x4_pd(_mm512_castps_pd(low), 1);
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(low), _mm256_castpd_ps(upper));
#else
    __m256 lane[4];
    for (int q = 0; q < 4; q++)
        lane[q] = _mm256_mul_ps(_mm256_loadu_ps(a + 8 * q), _mm256_loadu_ps(b + 8 * q));
    for (int64_t i = FOLD_LANES; i < whole; i += FOLD_LANES)
        for (int q = 0; q < 4; q++)
            lane[q] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * q),
                                      _mm256_loadu_ps(b + i + 8 * q), lane[q]);
    const __m256 eight = _mm256_add_ps(_mm256_add_ps(lane[0], lane[2]),
                                       _mm256_add_ps(lane[1], lane[3]));
#endif
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}
static void K(add_dots)(const float *const *a, const float *const *b, int64_t n, double *sums) {
    const int64_t whole = n / FOLD_LANES * FOLD_LANES;
    __m256d total = _mm256_setzero_pd();
    __m128 p[DOTS], q[DOTS];
    if (whole) {
        for (int r = 0; r < DOTS; r++) p[r] = K(dot_lanes)(a[r], b[r], whole);
        _MM_TRANSPOSE4_PS(p[0], p[1], p[2], p[3]);
        total = _mm256_add_pd(_mm256_add_pd(_mm256_cvtps_pd(p[0]), _mm256_cvtps_pd(p[2])),
                              _mm256_add_pd(_mm256_cvtps_pd(p[1]), _mm256_cvtps_pd(p[3])));
    }
    for (int64_t i = whole; i < n; i += 4) {
        const int here = n - i < 4 ? (int)(n - i) : 4;
        const __m128i mask = _mm_cmpgt_epi32(_mm_set1_epi32(here), _mm_setr_epi32(0, 1, 2, 3));
        for (int r = 0; r < DOTS; r++) {
            p[r] = _mm_maskload_ps(a[r] + i, mask);
            q[r] = _mm_maskload_ps(b[r] + i, mask);
        }
        _MM_TRANSPOSE4_PS(p[0], p[1], p[2], p[3]);
        _MM_TRANSPOSE4_PS(q[0], q[1], q[2], q[3]);
        for (int k = 0; k < here; k++)
            total = _mm256_fmadd_pd(_mm256_cvtps_pd(p[k]), _mm256_cvtps_pd(q[k]), total);
    }
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), total));
}
#else
#define DOTS 1
static void K(add_dots)(const REAL *const *a, const REAL *const *b, int64_t n, double *sums) {
    const REAL *x = *a, *y = *b;
    double total = 0;
    int64_t i = 0;
    if (n >= FOLD_LANES) {
        REAL lane[FOLD_LANES];
        for (int l = 0; l < FOLD_LANES; l++) lane[l] = x[l] * y[l];
        for (i = FOLD_LANES; i + FOLD_LANES <= n; i += FOLD_LANES)
            for (int l = 0; l < FOLD_LANES; l++) lane[l] += x[i + l] * y[i + l];
        total = K(sum_lanes)(lane);
    }
    for (; i < n; i++) total += (double)x[i] * y[i];
    *sums += total;
}
#endif

/* sum over a2 of x * y, both contiguous: the sparse weight gradient, products of one sample. */
static int K(dot_rows)(const loop_t *l, const domain_t *d) {
    const view_t *x = &d->v[0], *y = &d->v[1], *out = &d->v[2];
    if (x->dtype != REAL_TYPE || y->dtype != REAL_TYPE || x->stride[2] != 1 || x->index[2]
        || y->stride[2] != 1 || y->index[2]) return 0;
    for (int64_t i0 = 0; i0 < d->n[0]; i0++) {
        int64_t e0 = d->indptr ? d->indptr[i0] : 0, e1 = d->indptr ? d->indptr[i0 + 1] : d->n[1];
        for (int64_t e = e0; e < e1; e += DOTS) {
            const int here = e1 - e < DOTS ? (int)(e1 - e) : DOTS;
            const REAL *xs[DOTS], *ys[DOTS];
            double sums[DOTS] = {0};
            for (int r = 0; r < DOTS; r++) {
                const int64_t at = e + (r < here ? r : 0);
                xs[r] = (const REAL *)x->data + K(place)(x, 0, i0) + K(place)(x, 1, at);
                ys[r] = (const REAL *)y->data + K(place)(y, 0, i0) + K(place)(y, 1, at);
            }
            for (int64_t i2 = 0; i2 < d->n[2]; i2 += STRIP) {
                const int64_t c = d->n[2] - i2 < STRIP ? d->n[2] - i2 : STRIP;
                K(add_dots)(xs, ys, c, sums);
                for (int r = 0; r < DOTS; r++) { xs[r] += c; ys[r] += c; }
            }
            for (int r = 0; r < here; r++) {
                K(acc_t) s = {sums[r], 0, -1};
                K(finish)(l, out, K(place)(out, 0, i0) + K(place)(out, 1, e + r), 0, s);
            }
        }
    }
    return 1;
}
#undef DOTS

/* Copy rows, or their live places only. */
static int K(copy_rows)(const domain_t *d) {
    const view_t *v = &d->v[0], *out = &d->v[1];
    const int64_t c = d->n[2];
    if (v->dtype != REAL_TYPE || out->dtype != REAL_TYPE || d->indptr || d->axis || out->index[2]
        || c < 8 || v->stride[2] != 1 || out->stride[2] != 1) return 0;
    for (int64_t i0 = 0; i0 < d->n[0]; i0++)
        for (int64_t i1 = 0; i1 < d->n[1]; i1++) {
            const REAL *restrict p = (const REAL *)v->data + K(place)(v, 0, i0) + K(place)(v, 1, i1);
            REAL *restrict to = (REAL *)out->data + K(place)(out, 0, i0) + K(place)(out, 1, i1);
            const int32_t *x = v->index[2];
            if (!x) { memcpy(to, p, c * sizeof(REAL)); continue; }
#if LEVEL == 2 && IS_F32
            if (LIVE_BITS(v)) {
                const int64_t after = i1 + 1 < d->n[1] ? i1 + 1 : i1;
                const float *q = (const float *)v->data + K(place)(v, 0, i0) + K(place)(v, 1, after);
                K(squeeze)(v, p, q, to, 0, c);
                continue;
            }
#endif
            for (int64_t j = 0; j < c; j++) to[j] = p[x[j]];
        }
    return 1;
}

/* Whether a result at a0, and at this place along the other remaining axis, has nothing to
 * reduce. */
static inline int K(is_gated)(const loop_t *l, const domain_t *d, int64_t i0, int axis, int64_t i) {
    const view_t *v = &d->v[(l->gate > 0 ? l->gate : -l->gate) - 1];
    return (K(read)(v, K(place)(v, 0, i0) + K(place)(v, axis, i)) != 0) == (l->gate > 0);
}
static int K(all_gated)(const loop_t *l, const domain_t *d, int64_t i0, int axis, int64_t from,
                        int64_t n) {
    for (int64_t k = 0; k < n; k++) if (!K(is_gated)(l, d, i0, axis, from + k)) return 0;
    return 1;
}

#include "tiles.h"
#include "windows.h"
#include "ranks.h"

static void K(loop)(const tape_t *t, const loop_t *l, domain_t *d, char *scratch) {
    const int64_t n0 = d->n[0], n1 = d->n[1], n2 = d->n[2];
    REAL *strip = (REAL *)scratch;
    double *acc = (double *)(scratch + l->n_slots * STRIP_BYTES);
    REAL *best = (REAL *)(acc + STRIP);
    int64_t *where = (int64_t *)(best + STRIP);
    REAL **value = (REAL **)(where + STRIP);
    K(machine_t) m = {l, d, strip, value, (uint8_t *)(value + l->n_values + 4), 1};
    if (n0 <= 0) return;
    if (l->fast == FAST_COPY && K(copy_rows)(d)) return;
    if (l->fast == FAST_DOT && d->axis == 1 && K(weighted_rows)(l, d, acc, best)) return;
    if (l->fast == FAST_DOT && d->axis == 2 && K(dot_rows)(l, d)) return;

    const int is_by_rows = l->fast == FAST_ROWS || l->fast == FAST_WAVES
                           || (l->fast == FAST_SQUARES && d->axis == 2);
    if (is_by_rows && K(row_tiles)(t, l, d)) return;
    if (has_columns(l) && K(column_tiles)(t, l, d)) return;

    for (int k = l->fast == FAST_PLACES ? 0 : l->n_in; k < l->n_values; k++)
        value[k] = strip + l->slot[k] * STRIP;
    for (int k = 0; k < l->n_const; k++) {
        REAL q = (REAL)value_of(t, l->consts[k]), *to = value[l->n_in + k];
        for (int64_t j = 0; j < STRIP; j++) to[j] = q;
    }
    if (l->fast == FAST_PLACES && K(places)(l, d, value, (double *)(value + l->n_values))) return;
    if (d->indptr && n2 == 1) { K(receivers)(&m); return; }
    const int64_t rows = K(rows_per_tile)(l, d);
    const view_t *out = &d->v[l->n_in];
    const int gated = l->gate && !d->indptr;

    /* Over all three axes: rows of a1 that stay in the second-level cache for all of a0. */
    int is_deep = !d->indptr;
    for (int k = 0; k < 3; k++) is_deep &= resolve(t, l->extent[k]) > 1;
    if (d->axis != 1) {                         /* elementwise, or reduce along the strip */
        const int64_t n_near = NEAR_ROWS_BYTES / ((n2 + 1) * (int64_t)sizeof(REAL)) + 1;
        const int64_t near = is_deep && d->axis == 2 && n_near >= rows ? n_near / rows * rows : n1;
        for (int64_t from = 0; from < (d->indptr ? 1 : n1); from += near)
        for (int64_t i0 = 0; i0 < n0; i0++) {
            int64_t e0 = d->indptr ? d->indptr[i0] : from, e1 = d->indptr ? d->indptr[i0 + 1]
                       : from + near < n1 ? from + near : n1;
            for (int64_t i1 = e0; i1 < e1; i1 += rows) {
                int64_t r = e1 - i1 < rows ? e1 - i1 : rows;
                if (d->axis == 0) {
                    for (int64_t i2 = 0; i2 < n2; i2 += STRIP)
                        K(tile)(&m, i0, i1, r, i2, n2 - i2 < STRIP ? n2 - i2 : STRIP,
                                d->indptr ? e0 : 0);
                    continue;
                }
                K(acc_t) s = K(start)(l->reduce);
                if (gated && K(all_gated)(l, d, i0, 1, i1, r)) {
                    for (int64_t j = 0; j < r; j++)
                        K(finish)(l, out, K(place)(out, 0, i0) + K(place)(out, 1, i1 + j), 0, s);
                    continue;
                }
                if (rows == 1) {
                    for (int64_t i2 = 0; i2 < n2; i2 += STRIP) {
                        int64_t c = n2 - i2 < STRIP ? n2 - i2 : STRIP;
                        K(tile)(&m, i0, i1, 1, i2, c, d->indptr ? e0 : 0);
                        K(fold_row)(l->reduce, &s, value[l->result[0]], c, i2);
                    }
                    K(finish_at)(l, out, i0, 1, i1, s);
                    continue;
                }
                K(tile)(&m, i0, i1, r, 0, n2, d->indptr ? e0 : 0);
                for (int64_t j = 0; j < r; j++) {
                    s = K(start)(l->reduce);
                    K(fold_row)(l->reduce, &s, value[l->result[0]] + j * n2, n2, 0);
                    K(finish_at)(l, out, i0, 1, i1 + j, s);
                }
            }
        }
        return;
    }

    const K(acc_t) zero = K(start)(l->reduce);
    const K(across_t) across = {acc, best, where};
    if (d->indptr && n2 > 1 && rows > 1) { K(receivers_across)(&m, &across, rows); return; }
    if (n2 == 1) {
        for (int64_t i0 = 0; i0 < n0; i0++) {
            K(acc_t) s = zero;
            for (int64_t i1 = 0; i1 < n1; i1 += rows) {
                int64_t r = n1 - i1 < rows ? n1 - i1 : rows;
                K(tile)(&m, i0, i1, r, 0, 1, 0);
                K(fold_row)(l->reduce, &s, value[l->result[0]], r, i1);
            }
            K(finish)(l, out, K(place)(out, 0, i0), l->n_out > 1 ? K(place)(out + 1, 0, i0) : 0, s);
        }
        return;
    }
    /* Reduce over rows, a strip of results at a time; over three axes the rows' strips stay near for
     * all of a0, and sums are float for 32 rows. */
    const int64_t n_out = is_deep ? (n2 + STRIP - 1) / STRIP : 1;
    for (int64_t at = 0; at < n_out * n0; at++) {
        const int64_t i0 = at % n0, i2_from = is_deep ? at / n0 * STRIP : 0;
        const int64_t i2_to = is_deep && i2_from + STRIP < n2 ? i2_from + STRIP : n2;
        int64_t e0 = d->indptr ? d->indptr[i0] : 0, e1 = d->indptr ? d->indptr[i0 + 1] : n1;
        for (int64_t i2 = i2_from; i2 < i2_to; i2 += STRIP) {
            int64_t c = n2 - i2 < STRIP ? n2 - i2 : STRIP;
            if (gated && K(all_gated)(l, d, i0, 2, i2, c)) {
                for (int64_t j = 0; j < c; j++)
                    K(finish)(l, out, K(place)(out, 0, i0) + K(place)(out, 2, i2 + j), 0, zero);
                continue;
            }
            const int in_parts = is_deep && l->reduce == R_SUM;
            int64_t n_parts = 0;
            K(start_across)(&across, c, zero);
            for (int64_t i1 = e0; i1 < e1; i1 += rows) {
                int64_t r = e1 - i1 < rows ? e1 - i1 : rows;
                K(tile)(&m, i0, i1, r, i2, c, e0);
                const REAL *v = value[l->result[0]];
                if (in_parts) {
                    for (int64_t row = 0; row < r; row++, v += c) {
                        IVDEP for (int64_t j = 0; j < c; j++) best[j] += v[j];
                        if (++n_parts % 32 == 0)
                            for (int64_t j = 0; j < c; j++) { acc[j] += best[j]; best[j] = 0; }
                    }
                    continue;
                }
                K(fold_rows)(l->reduce, &across, v, r, c, i1 - e0);
            }
            if (in_parts) for (int64_t j = 0; j < c; j++) acc[j] += best[j];
            for (int64_t j = 0; j < c; j++) {
                K(acc_t) s = {acc[j], best[j], where[j]};
                K(finish_at)(l, out, i0, 2, i2 + j, s);
            }
        }
    }
}

#include "draws.h"
#include "loads.h"

/* The macros whose text is another one for the other dtype; tiles.h has more. */
#undef LIVE_BITS
#undef ABS_
#undef SQRT_
#undef FLOOR_
#undef SIN_
#undef COS_
#undef POW_
#undef FMOD_
#undef COPYSIGN_
#undef F
#undef SIN_IN
#undef POW_IN
#undef FMOD_IN
#undef UNARY_ALL
#undef WHOLE
#undef SIGN_BIT
#undef VEC_MAX
#undef VEC_MIN
#undef EACH_LANE
