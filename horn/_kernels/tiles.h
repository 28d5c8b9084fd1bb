/* Loops over pairs of rows as register tiles: included by strips.h, per dtype and level.
 *
 * Rows: out[p, q] = the sum, product, maximum or minimum over r of a term of x[p, r] and w[q, r], both
 * contiguous along r. TP x TQ results are in registers while r runs; TILE_Q rows of w, TILE_R places
 * of each, stay in the second-level cache for TILE_P rows of x.
 * Columns: out[p, q] = the sum over r of u[p, r] sign(m[r, q] - f[p, q]), contiguous along q. DEEP
 * rows of m, two vectors of each, are packed once for TILE_P results.
 * Quotients, the gradient of a product of terms: the sum over r of y[r, q] times b[p, r] / t, or
 * a[p, r] where t is 0, t a term of m[r, q] and f[p, q].
 * Waves: the sum over r of F(x w - t), perhaps times x or w, t a number of the result. Slopes, their
 * gradient: the sum over r of y (a + b y) F'(m f - t).
 * Squares: the sum over r of s (x - w)^2, s of each w (rows), or of u (m - f)^2 (columns).
 *
 * Sums are float within TILE_R places and double beyond; products are double, or float where their
 * factors are all near 1. A term is rounded as two operations, as in strips.h: whether it is 0 may
 * not depend on the path. Extremes and signs of infinities and NaN are left to strips.h, which has
 * NumPy's answer.
 */
#define TP (LEVEL == 2 ? 4 : 2)
#define TQ 4
#define VEC_ADD(a, b) ((a) + (b))
#define VEC_TIMES(a, b) ((a) * (b))
#define OF_MUL(x, w) ((x) * (w))
#define OF_ADD(x, w) ((x) + (w))
#define OF_SUB(x, w) ((x) - (w))
#define OF_BUS(x, w) ((w) - (x))
#define OF_APART(x, w) ((VEC_T)((BITS_T)((x) - (w)) & ~SIGN_BIT))
#define OF_SQUARE(x, w) (((x) - (w)) * ((x) - (w)))
#define OF_LESS(x, w) (number - K(rounded)((x) * (w)))
#define OF_MORE(x, w) (number + K(rounded)((x) * (w)))

/* ---- rows ---- */
#define EACH_Q(X, p, T, J) X(p, 0, T, J) X(p, 1, T, J) X(p, 2, T, J) X(p, 3, T, J)
#if TP == 4
#define EACH_P(X) X(0) X(1) X(2) X(3)
#define EACH_STEP(X, T) X(0, T) X(1, T) X(2, T) X(3, T)
#define EACH(X, T, J) EACH_Q(X, 0, T, J) EACH_Q(X, 1, T, J) EACH_Q(X, 2, T, J) EACH_Q(X, 3, T, J)
#else
#define EACH_P(X) X(0) X(1)
#define EACH_STEP(X, T) X(0, T) X(1, T)
#define EACH(X, T, J) EACH_Q(X, 0, T, J) EACH_Q(X, 1, T, J)
#endif
#define EACH_W(X) X(0) X(1) X(2) X(3)
#define TILE_BEGIN(p, q, T, J) VEC_T s##p##q = begin;
#define TILE_STEP(p, q, T, J) s##p##q = J(s##p##q, T(x##p, w##q));
#define TILE_LAST(p, q, T, J) s##p##q = J(s##p##q, K(vec_pick)(here, T(x##p, w##q), begin));
#define TILE_KEEP(p, q, T, J) K(vec_store)(to + ((p) * TQ + (q)) * LN, s##p##q);
#define X_ROW(p) const REAL *xs##p = x[p];
#define W_ROW(q) const REAL *ws##q = w[q];
#define X_LOAD(p) const VEC_T x##p = K(vec_load)(xs##p + i);
#define W_LOAD(q) const VEC_T w##q = K(vec_load)(ws##q + i);
#define X_PART(p) const VEC_T x##p = K(part_load)(xs##p + i, n - i);
#define W_PART(q) const VEC_T w##q = K(part_load)(ws##q + i, n - i);
/* STEP of every result, as vectors run along the rows; LAST, of the lanes that are left. */
#define ALONG_ROWS(EACH_RESULT, EACH_X, STEP, LAST, T, J) \
    EACH_X(X_ROW) EACH_W(W_ROW) \
    int64_t i = 0; \
    for (; i + LN <= n; i += LN) { \
        EACH_X(X_LOAD) EACH_W(W_LOAD) \
        EACH_RESULT(STEP, T, J) \
    } \
    if (i < n) { \
        const BITS_T here = K(vec_first)(n - i); \
        EACH_X(X_PART) EACH_W(W_PART) \
        EACH_RESULT(LAST, T, J) \
    }

#define ROW_TILE(NAME, TERM, JOIN, BEGIN) \
static void K(NAME)(const REAL *const x[TP], const REAL *const w[TQ], int64_t n, REAL c, REAL *to) { \
    const VEC_T number = K(vec_of)(c); (void)number; \
    const VEC_T begin = K(vec_of)(BEGIN); \
    EACH(TILE_BEGIN, TERM, JOIN) \
    ALONG_ROWS(EACH, EACH_P, TILE_STEP, TILE_LAST, TERM, JOIN) \
    EACH(TILE_KEEP, TERM, JOIN) \
}
typedef void (*K(row_tile_t))(const REAL *const *, const REAL *const *, int64_t, REAL, REAL *);
ROW_TILE(sum_apart, OF_APART, VEC_ADD, 0)
ROW_TILE(sum_square, OF_SQUARE, VEC_ADD, 0)
#define EXTREMES(NAME, TERM) \
    ROW_TILE(max_##NAME, TERM, VEC_MAX, -(REAL)INFINITY) \
    ROW_TILE(min_##NAME, TERM, VEC_MIN, (REAL)INFINITY)
#define S_ROW(q) const REAL *bs##q = by[q];
#define S_LOAD(q) const VEC_T b##q = K(vec_load)(bs##q + i);
#define S_PART(q) const VEC_T b##q = K(part_load)(bs##q + i, n - i);     /* 0 past the end */
#define SQUARE_STEP(p, q, T, J) s##p##q += b##q * OF_SQUARE(x##p, w##q);
static void K(weighted_squares)(const REAL *const x[TP], const REAL *const w[TQ],
                                const REAL *const by[TQ], int64_t n, REAL *to) {
    const VEC_T begin = {0};
    EACH(TILE_BEGIN, , )
    EACH_P(X_ROW) EACH_W(W_ROW) EACH_W(S_ROW)
    int64_t i = 0;
    for (; i + LN <= n; i += LN) {
        EACH_P(X_LOAD) EACH_W(W_LOAD) EACH_W(S_LOAD)
        EACH(SQUARE_STEP, , )
    }
    if (i < n) {
        EACH_P(X_PART) EACH_W(W_PART) EACH_W(S_PART)
        EACH(SQUARE_STEP, , )
    }
    EACH(TILE_KEEP, , )
}
EXTREMES(mul, OF_MUL)
EXTREMES(add, OF_ADD)
EXTREMES(sub, OF_SUB)
EXTREMES(bus, OF_BUS)
EXTREMES(apart, OF_APART)
/* by T_* of tape.h; T_SUB is x - w where the first input is x, and swapped where it is w */
static const K(row_tile_t) K(ROW_SUMS)[] = {
    NULL, NULL, NULL, NULL, K(sum_apart), K(sum_square)};
static const K(row_tile_t) K(ROW_MAXIMA)[] = {
    K(max_mul), K(max_add), K(max_sub), K(max_bus), K(max_apart), NULL};
static const K(row_tile_t) K(ROW_MINIMA)[] = {
    K(min_mul), K(min_add), K(min_sub), K(min_bus), K(min_apart), NULL};

/* Products of PP x TQ results in double; `to`: all lanes of each as one. */
#if LEVEL == 2
#define PP 2
#define EACH_WIDE(X, T, J) EACH_Q(X, 0, T, J) EACH_Q(X, 1, T, J)
#define EACH_PX(X) X(0) X(1)
#else
#define PP 1
#define EACH_WIDE(X, T, J) EACH_Q(X, 0, T, J)
#define EACH_PX(X) X(0)
#endif
typedef double K(doubles_t) __attribute__((vector_size(TILE_BYTES)));
#if IS_F32
typedef float K(half_t) __attribute__((vector_size(TILE_BYTES / 2)));
static inline K(doubles_t) K(half_as_wide)(const VEC_T *v, int k) {
    K(half_t) h; memcpy(&h, (const char *)v + k * TILE_BYTES / 2, sizeof h);
    return __builtin_convertvector(h, K(doubles_t));
}
#define PRODUCT_BEGIN(p, q, T, J) K(doubles_t) s##p##q = one, z##p##q = one;
#define PRODUCT_STEP(p, q, T, J) { const VEC_T v = T(x##p, w##q); \
    s##p##q *= K(half_as_wide)(&v, 0); z##p##q *= K(half_as_wide)(&v, 1); }
#define PRODUCT_LAST(p, q, T, J) { const VEC_T v = K(vec_pick)(here, T(x##p, w##q), K(vec_of)(1)); \
    s##p##q *= K(half_as_wide)(&v, 0); z##p##q *= K(half_as_wide)(&v, 1); }
#define PRODUCT_KEEP(p, q, T, J) s##p##q *= z##p##q; K(lanes_times)(to + (p) * TQ + (q), s##p##q);
#else
static inline K(doubles_t) K(half_as_wide)(const VEC_T *v, int k) { return v[k]; }  /* k is 0 */
#define PRODUCT_BEGIN(p, q, T, J) K(doubles_t) s##p##q = one;
#define PRODUCT_STEP(p, q, T, J) s##p##q *= T(x##p, w##q);
#define PRODUCT_LAST(p, q, T, J) s##p##q *= K(vec_pick)(here, T(x##p, w##q), K(vec_of)(1));
#define PRODUCT_KEEP(p, q, T, J) K(lanes_times)(to + (p) * TQ + (q), s##p##q);
#endif
static inline void K(lanes_times)(double *to, K(doubles_t) v) {
    double a[TILE_BYTES / sizeof(double)];
    memcpy(a, &v, sizeof a);
    for (int m = TILE_BYTES / sizeof(double) / 2; m; m /= 2)
        for (int k = 0; k < m; k++) a[k] *= a[k + m];
    *to = a[0];
}
#define PRODUCT_TILE(NAME, TERM) \
static void K(NAME)(const REAL *const x[TP], const REAL *const w[TQ], int64_t n, REAL c, double *to) { \
    const K(doubles_t) one = (K(doubles_t)){0} + 1; \
    const VEC_T number = K(vec_of)(c); (void)number; \
    EACH_WIDE(PRODUCT_BEGIN, TERM, ) \
    ALONG_ROWS(EACH_WIDE, EACH_PX, PRODUCT_STEP, PRODUCT_LAST, TERM, ) \
    EACH_WIDE(PRODUCT_KEEP, TERM, ) \
}
typedef void (*K(product_tile_t))(const REAL *const *, const REAL *const *, int64_t, REAL, double *);
PRODUCT_TILE(product_mul, OF_MUL)
PRODUCT_TILE(product_add, OF_ADD)
PRODUCT_TILE(product_sub, OF_SUB)
PRODUCT_TILE(product_bus, OF_BUS)
PRODUCT_TILE(product_less, OF_LESS)
PRODUCT_TILE(product_more, OF_MORE)
static const K(product_tile_t) K(ROW_PRODUCTS)[] = {
    K(product_mul), K(product_add), K(product_sub), K(product_bus), NULL, NULL,
    K(product_less), K(product_more)};

#if IS_F32
/* In float, where no lane can leave its range: each factor is NEAR_1 at least, and 1 / NEAR_1 at most. */
ROW_TILE(narrow_less, OF_LESS, VEC_TIMES, 1)
ROW_TILE(narrow_more, OF_MORE, VEC_TIMES, 1)
#define NEAR_1 (LEVEL == 2 ? 0.273 : LEVEL == 1 ? 0.523 : 0.723)     /* to the TILE_R / LN: 2**-120 */
static REAL K(farthest)(const REAL *p, int64_t n) {
    REAL lane[16] = {0}, most = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) lane[k] = ABS_(p[i + k]) > lane[k] ? ABS_(p[i + k]) : lane[k];
    for (; i < n; i++) most = ABS_(p[i]) > most ? ABS_(p[i]) : most;
    for (int k = 0; k < 16; k++) most = lane[k] > most ? lane[k] : most;
    return most;
}
#endif

/* ---- functions of x w - t ---- */
VECTORS(square_all) { OF_ALL(v[k] *= v[k]) }
VECTORS(slopes_of_tanh) { K(tanh_all)(v, n); OF_ALL(v[k] = 1 - v[k] * v[k]) }
VECTORS(slopes_of_sigmoid) { K(sigmoid_all)(v, n); OF_ALL(v[k] *= 1 - v[k]) }
#define WAVE_ALONE(x, w, v) (v)
#define WAVE_OF_X(x, w, v) ((x) * (v))
#define WAVE_OF_W(x, w, v) ((w) * (v))
#define WAVE_BEGIN(p, q, T, J) VEC_T s##p##q = {0}; const VEC_T t##p##q = K(vec_of)(t[(p) * TQ + (q)]);
#define WAVE_ARG(p, q, T, J) v[(p) * TQ + (q)] = x##p * w##q - t##p##q;
#define WAVE_STEP(p, q, T, J) s##p##q += J(x##p, w##q, v[(p) * TQ + (q)]);
#define WAVE_LAST(p, q, T, J) \
    s##p##q += K(vec_pick)(here, J(x##p, w##q, v[(p) * TQ + (q)]), (VEC_T){0});
#define EACH_WAVE(X, T, J) { VEC_T v[PP * TQ]; EACH_WIDE(WAVE_ARG, T, J) T(v, PP * TQ); EACH_WIDE(X, T, J) }
#define WAVE_TILE(NAME, FUNCTION, JOIN) \
static void K(NAME)(const REAL *const x[TP], const REAL *const w[TQ], const REAL *t, int64_t n, \
                    REAL *to) { \
    EACH_WIDE(WAVE_BEGIN, FUNCTION, JOIN) \
    ALONG_ROWS(EACH_WAVE, EACH_PX, WAVE_STEP, WAVE_LAST, FUNCTION, JOIN) \
    EACH_WIDE(TILE_KEEP, FUNCTION, JOIN) \
}
#define WAVE_TILES(NAME, FUNCTION) \
    WAVE_TILE(NAME##_alone, FUNCTION, WAVE_ALONE) \
    WAVE_TILE(NAME##_of_x, FUNCTION, WAVE_OF_X) \
    WAVE_TILE(NAME##_of_w, FUNCTION, WAVE_OF_W)
WAVE_TILES(wave_exp, K(exp_all))
WAVE_TILES(wave_tanh, K(tanh_all))
WAVE_TILES(wave_sigmoid, K(sigmoid_all))
WAVE_TILES(wave_square, K(square_all))
typedef void (*K(wave_tile_t))(const REAL *const *, const REAL *const *, const REAL *, int64_t, REAL *);
static const K(wave_tile_t) K(WAVES)[N_WAVES][3] = {
    {K(wave_exp_alone), K(wave_exp_of_x), K(wave_exp_of_w)},
    {K(wave_tanh_alone), K(wave_tanh_of_x), K(wave_tanh_of_w)},
    {K(wave_sigmoid_alone), K(wave_sigmoid_of_x), K(wave_sigmoid_of_w)},
    {K(wave_square_alone), K(wave_square_of_x), K(wave_square_of_w)}};

/* The lanes of one result as one number. */
static inline REAL K(lanes)(int monoid, REAL *a) {
    if (monoid == R_SUM)
        for (int m = (int)LN / 2; m; m /= 2) for (int k = 0; k < m; k++) a[k] += a[k + m];
    else if (monoid == R_MIN)
        for (int m = (int)LN / 2; m; m /= 2)
            for (int k = 0; k < m; k++) a[k] = a[k] < a[k + m] ? a[k] : a[k + m];
    else
        for (int m = (int)LN / 2; m; m /= 2)
            for (int k = 0; k < m; k++) a[k] = a[k] > a[k + m] ? a[k] : a[k + m];
    return a[0];
}

/* The sum of the lanes of each of TP * TQ results, as ``lanes`` has it, of all at once. */
static inline void K(sums_of_lanes)(REAL *a, REAL *to) {
    for (int m = (int)LN / 2; m >= 4; m /= 2)
        for (int j = 0; j < TP * TQ; j++)
            for (int k = 0; k < m; k++) a[j * LN + k] += a[j * LN + k + m];
    for (int j = 0; j < TP * TQ; j++)
        to[j] = LN == 2 ? a[j * LN] + a[j * LN + 1]
                        : (a[j * LN] + a[j * LN + 2]) + (a[j * LN + 1] + a[j * LN + 3]);
}

static int K(all_finite)(const REAL *p, int64_t rows, int64_t step, int64_t n) {
    for (int64_t row = 0; row < rows; row++, p += step) {
        BITS_T bad = {0};
        int64_t i = 0;
        for (; i + LN <= n; i += LN) {
            const VEC_T v = K(vec_load)(p + i);
            bad |= v - v != 0;
        }
        int is_bad = 0;
        for (int k = 0; k < (int)LN; k++) is_bad |= bad[k] != 0;
        for (; i < n; i++) is_bad |= !(p[i] - p[i] == 0);
        if (is_bad) return 0;
    }
    return 1;
}

/* Whether the numbers that a view has along a0 and a1 are finite. */
static int K(finite_numbers)(const view_t *v, int64_t n0, int64_t n1) {
    const REAL *p = (const REAL *)v->data;
    if (v->stride[1] == 1) return K(all_finite)(p, n0, v->stride[0], n1);
    if (v->stride[0] == 1) return K(all_finite)(p, n1, v->stride[1], n0);
    for (int64_t i = 0; i < n0; i++)
        if (!K(all_finite)(p + i * v->stride[0], n1, v->stride[1], 1)) return 0;
    return 1;
}

/* The first place where the term is its maximum. */
static int64_t K(first_place)(int term, const REAL *x, const REAL *w, int64_t n, REAL best) {
#define FIND(E) \
    for (; i + 64 <= n; i += 64) { \
        int found = 0; \
        for (int64_t k = i; k < i + 64; k++) { const REAL X = x[k], W = w[k]; found |= (E) == best; } \
        if (found) break; \
    } \
    for (; i < n; i++) { const REAL X = x[i], W = w[i]; if ((E) == best) return i; } \
    break;
    int64_t i = 0;
    switch (term) {
    case T_MUL: FIND(X * W)
    case T_ADD: FIND(X + W)
    case T_SUB: FIND(X - W)
    case T_BUS: FIND(W - X)
    case T_APART: FIND(ABS_(X - W))
    }
    return 0;
}

/* Whether a view lies in rows along a2 and does not vary along `still`, or is one number of a row. */
static inline int K(is_rows)(const view_t *v, int still) {
    return v->dtype == REAL_TYPE && v->stride[2] == 1 && v->stride[still] == 0
        && !v->index[0] && !v->index[1] && !v->index[2];
}
static inline int K(is_number)(const view_t *v) {
    return v->dtype == REAL_TYPE && v->stride[2] == 0 && !v->index[0] && !v->index[1] && !v->index[2];
}

#define TILE_P 64
#define TILE_Q 32
#define TILE_R 1024
static inline void K(keep_result)(const loop_t *l, const view_t *out, int64_t off, int64_t off2,
                                  double v, int64_t where) {
    if (l->reduce != R_ARGMAX && !l->accumulate && out->dtype == REAL_TYPE) {
        ((REAL *)out->data)[off] = (REAL)v;
        return;
    }
    K(acc_t) s = {v, (REAL)v, where};
    K(finish)(l, out, off, off2, s);
}

/* n rows from row `first`; past the end the last one again. */
static inline void K(rows_at)(const REAL **to, const REAL *from, int64_t step, int64_t first,
                              int64_t end, int n) {
    for (int k = 0; k < n; k++) to[k] = from + (first + k < end ? first + k : end - 1) * step;
}

/* total *= the products of the terms of pn rows of x and qn of w. A result's own two rows decide
 * whether it is computed in float. */
static void K(products)(int term, REAL number, const REAL *x, int64_t step_x, int64_t pn,
                        const REAL *w, int64_t step_w, int64_t qn, int64_t n, double *total) {
    const K(product_tile_t) wide = K(ROW_PRODUCTS)[term];
    const REAL *xs[TP], *ws[TQ];
    double products[TP * TQ];
#if IS_F32
    const K(row_tile_t) narrow = term == T_LESS ? K(narrow_less) : term == T_MORE ? K(narrow_more) : NULL;
    REAL far_x[TILE_P], far_w[TILE_Q], lanes[TP * TQ * TILE_BYTES / sizeof(REAL)];
    for (int64_t p = 0; narrow && p < pn; p++) far_x[p] = K(farthest)(x + p * step_x, n);
    for (int64_t q = 0; narrow && q < qn; q++) far_w[q] = K(farthest)(w + q * step_w, n);
#endif
    for (int64_t r = 0; r < n; r += TILE_R) {
        const int64_t c = n - r < TILE_R ? n - r : TILE_R;
        for (int64_t p = 0; p < pn; p += TP)
            for (int64_t q = 0; q < qn; q += TQ) {
                int is_near[TP * TQ] = {0}, n_near = 0;
                K(rows_at)(xs, x + r, step_x, p, pn, TP);
                K(rows_at)(ws, w + r, step_w, q, qn, TQ);
#if IS_F32
                for (int k = 0; narrow && k < TP * TQ; k++) {
                    const int64_t at = p + k / TQ < pn ? p + k / TQ : pn - 1;
                    const int64_t to = q + k % TQ < qn ? q + k % TQ : qn - 1;
                    const double far = (double)far_x[at] * far_w[to], middle = fabs((double)number);
                    is_near[k] = middle - far >= NEAR_1 && middle + far <= 1 / NEAR_1;
                    n_near += is_near[k];
                }
                if (n_near) {
                    narrow(xs, ws, c, number, lanes);
                    for (int k = 0; k < TP * TQ; k++) {
                        double v = 1;
                        for (int i = 0; i < LN; i++) v *= lanes[k * LN + i];
                        if (is_near[k]) total[(p + k / TQ) * TILE_Q + q + k % TQ] *= v;
                    }
                }
#endif
                if (n_near == TP * TQ) continue;
                for (int k = 0; k < TP; k += PP) wide(xs + k, ws, c, number, products + k * TQ);
                for (int k = 0; k < TP * TQ; k++)
                    if (!is_near[k]) total[(p + k / TQ) * TILE_Q + q + k % TQ] *= products[k];
            }
    }
}

/* total += the sums of F(x w - sign t) of pn rows of x and qn of w; t: NULL, or a number of each in
 * steps t0 and t1. */
static void K(waves)(K(wave_tile_t) tile, const REAL *x, int64_t step_x, int64_t pn, const REAL *w,
                     int64_t step_w, int64_t qn, int64_t n, const REAL *t, int64_t t0, int64_t t1,
                     REAL sign, double *total) {
    const REAL *xs[TP], *ws[TQ];
    REAL ts[PP * TQ] = {0}, lanes[PP * TQ * TILE_BYTES / sizeof(REAL)];
    for (int64_t r = 0; r < n; r += TILE_R) {
        const int64_t c = n - r < TILE_R ? n - r : TILE_R;
        for (int64_t p = 0; p < pn; p += PP)
            for (int64_t q = 0; q < qn; q += TQ) {
                K(rows_at)(xs, x + r, step_x, p, pn, PP);
                K(rows_at)(ws, w + r, step_w, q, qn, TQ);
                for (int k = 0; t && k < PP * TQ; k++) {
                    const int64_t at = p + k / TQ < pn ? p + k / TQ : pn - 1;
                    const int64_t to = q + k % TQ < qn ? q + k % TQ : qn - 1;
                    ts[k] = sign * t[at * t0 + to * t1];
                }
                tile(xs, ws, ts, c, lanes);
                for (int k = 0; k < PP * TQ; k++)
                    total[(p + k / TQ) * TILE_Q + q + k % TQ] += K(lanes)(R_SUM, lanes + k * LN);
            }
    }
}

/* 0: the loop's layout does not fit. */
static int K(row_tiles)(const tape_t *t, const loop_t *l, const domain_t *d) {
    const int is_wave = l->fast == FAST_WAVES, is_square = l->fast == FAST_SQUARES;
    const view_t *x = &d->v[is_wave ? l->role[0] : is_square ? l->role[1] : 0];
    const view_t *w = &d->v[is_wave ? l->role[1] : is_square ? l->role[2] : 1];
    const view_t *by = is_square ? &d->v[l->role[0]] : NULL;
    const view_t *t2 = is_wave && l->role[2] >= 0 ? &d->v[l->role[2]] : NULL, *out = &d->v[l->n_in];
    const int64_t np = d->n[0], nq = d->n[1], n = d->n[2];
    int term = l->term;
    if (d->axis != 2 || d->indptr || n < LN) return 0;
    if (by && by->stride[0] != 0 && by->stride[1] == 0) {   /* the rows that have weights come second */
        view_t turned[4];
        domain_t other = *d;
        for (int k = 0; k < 4; k++) {
            const view_t *v = &d->v[k];
            turned[k] = *v;
            turned[k].stride[0] = v->stride[1]; turned[k].stride[1] = v->stride[0];
            turned[k].index[0] = v->index[1]; turned[k].index[1] = v->index[0];
            turned[k].mask[0] = v->mask[1]; turned[k].mask[1] = v->mask[0];
        }
        other.v = turned; other.n[0] = nq; other.n[1] = np;
        return K(row_tiles)(t, l, &other);
    }
    if (x->stride[0] == 0) {
        const view_t *s = x; x = w; w = s;
        if (!is_wave && (term == T_SUB || term == T_BUS)) term = T_SUB + T_BUS - term;
    }
    if (!K(is_rows)(x, 1) || !K(is_rows)(w, 0) || (by && !K(is_rows)(by, 0))) return 0;
    const int monoid = l->reduce == R_ARGMAX ? R_MAX : l->reduce, is_product = monoid == R_PROD;
    const K(row_tile_t) tile = is_product || is_wave ? NULL : monoid == R_SUM ? K(ROW_SUMS)[term]
                             : monoid == R_MAX ? K(ROW_MAXIMA)[term] : K(ROW_MINIMA)[term];
    if (is_wave ? t2 && !K(is_number)(t2) : is_product ? !K(ROW_PRODUCTS)[term] : !tile) return 0;
    const view_t *times = is_wave && l->role[3] >= 0 ? &d->v[l->role[3]] : NULL;
    if (monoid != R_SUM && !is_product
        && !(K(all_finite)((REAL *)x->data, np, x->stride[0], n)
             && K(all_finite)((REAL *)w->data, nq, w->stride[1], n))) return 0;
    const double none = monoid == R_SUM ? 0 : is_product ? 1 : monoid == R_MAX ? -INFINITY : INFINITY;
    const REAL number = l->n_const ? (REAL)value_of(t, l->consts[0]) : 0;
    double total[TILE_P * TILE_Q];
    REAL lanes[TP * TQ * TILE_BYTES / sizeof(REAL)];
    for (int64_t q0 = 0; q0 < nq; q0 += TILE_Q)
        for (int64_t p0 = 0; p0 < np; p0 += TILE_P) {
            const int64_t pn = np - p0 < TILE_P ? np - p0 : TILE_P;
            const int64_t qn = nq - q0 < TILE_Q ? nq - q0 : TILE_Q;
            const REAL *xs0 = (const REAL *)x->data + p0 * x->stride[0];
            const REAL *ws0 = (const REAL *)w->data + q0 * w->stride[1];
            for (int64_t k = 0; k < TILE_P * TILE_Q; k++) total[k] = none;
            if (is_product) {
                K(products)(term, number, xs0, x->stride[0], pn, ws0, w->stride[1], qn, n, total);
            } else if (is_wave) {
                K(waves)(K(WAVES)[term][!times ? 0 : times == x ? 1 : 2], xs0, x->stride[0], pn, ws0,
                         w->stride[1], qn, n,
                         t2 ? (const REAL *)t2->data + p0 * t2->stride[0] + q0 * t2->stride[1] : NULL,
                         t2 ? t2->stride[0] : 0, t2 ? t2->stride[1] : 0, (REAL)l->role[4], total);
            } else for (int64_t r = 0; r < n; r += TILE_R) {
                const int64_t c = n - r < TILE_R ? n - r : TILE_R;
                for (int64_t p = 0; p < pn; p += TP)
                    for (int64_t q = 0; q < qn; q += TQ) {
                        const REAL *xs[TP], *ws[TQ];
                        K(rows_at)(xs, xs0 + r, x->stride[0], p, pn, TP);
                        K(rows_at)(ws, ws0 + r, w->stride[1], q, qn, TQ);
                        if (by) {
                            const REAL *bs[TQ], *from = (const REAL *)by->data + q0 * by->stride[1] + r;
                            K(rows_at)(bs, from, by->stride[1], q, qn, TQ);
                            K(weighted_squares)(xs, ws, bs, c, lanes);
                        } else {
                            tile(xs, ws, c, number, lanes);
                        }
                        REAL sums[TP * TQ];
                        if (monoid == R_SUM) K(sums_of_lanes)(lanes, sums);
                        for (int k = 0; k < TP; k++)
                            for (int j = 0; j < TQ; j++) {
                                double *to = total + (p + k) * TILE_Q + q + j;
                                const int at = k * TQ + j;
                                const REAL v = monoid == R_SUM ? sums[at] : K(lanes)(monoid, lanes + at * LN);
                                *to = monoid == R_SUM ? *to + v
                                    : monoid == R_MAX ? (v > *to ? v : *to) : v < *to ? v : *to;
                            }
                    }
            }
            for (int64_t p = 0; p < pn; p++)
                for (int64_t q = 0; q < qn; q++) {
                    const double v = total[p * TILE_Q + q];
                    const int64_t a = p0 + p, b = q0 + q, wide = l->n_out > 1;
                    const int64_t where = l->reduce != R_ARGMAX ? -1 : K(first_place)(
                        term, (REAL *)x->data + a * x->stride[0], (REAL *)w->data + b * w->stride[1],
                        n, (REAL)v);
                    K(keep_result)(l, out, K(place)(out, 0, a) + K(place)(out, 1, b),
                                   wide ? K(place)(out + 1, 0, a) + K(place)(out + 1, 1, b) : 0,
                                   v, where);
                }
        }
    return 1;
}

/* ---- columns ---- */
/* u with the sign of d; 0 where d is */
#if LEVEL == 2 && IS_F32
static inline VEC_T K(add_signed)(VEC_T s, VEC_T d, VEC_T u) {
    const __m512 v = (__m512)(((BITS_T)d & SIGN_BIT) ^ (BITS_T)u);
    const __mmask16 m = _mm512_cmp_ps_mask((__m512)d, _mm512_setzero_ps(), _CMP_NEQ_OQ);
    return (VEC_T)_mm512_mask_add_ps((__m512)s, m, (__m512)s, v);
}
#elif LEVEL == 2
static inline VEC_T K(add_signed)(VEC_T s, VEC_T d, VEC_T u) {
    const __m512d v = (__m512d)(((BITS_T)d & SIGN_BIT) ^ (BITS_T)u);
    const __mmask8 m = _mm512_cmp_pd_mask((__m512d)d, _mm512_setzero_pd(), _CMP_NEQ_OQ);
    return (VEC_T)_mm512_mask_add_pd((__m512d)s, m, (__m512d)s, v);
}
#else
static inline VEC_T K(add_signed)(VEC_T s, VEC_T d, VEC_T u) {
    return s + (VEC_T)((((BITS_T)d & SIGN_BIT) ^ (BITS_T)u) & (d != 0));
}
#endif
#define COLUMNS (2 * TILE_BYTES / sizeof(REAL))
#define DEEP (8192 / COLUMNS) /* places of r that are packed at once */

/* The operands of a tile. m, y : packed. f : a row of each result's. a, b : likewise, in steps. */
typedef struct {
    const REAL *m, *y, *f[TP], *a[TP], *b[TP], *t[TP];
    int64_t step_a, step_b, step_t, n;
    REAL c;                     /* of a quotient; of a slope the sign of t */
} K(columns_t);

#define F_LOAD(p) const VEC_T f##p##0 = K(vec_load)(o->f[p]), f##p##1 = K(vec_load)(o->f[p] + LN); \
                  VEC_T s##p##0 = {0}, s##p##1 = {0};
#define F_KEEP(p) K(vec_store)(to + (p) * COLUMNS, s##p##0); \
                  K(vec_store)(to + (p) * COLUMNS + LN, s##p##1);
#define COLUMN_TILE(NAME, STEPS) \
static void K(NAME)(const K(columns_t) *o, REAL *to) { \
    const VEC_T number = K(vec_of)(o->c); (void)number; \
    const REAL *m = o->m, *y = o->y; \
    EACH_P(F_LOAD) \
    for (int64_t r = 0; r < o->n; r++, m += COLUMNS, y += COLUMNS) { \
        const VEC_T m0 = K(vec_load)(m), m1 = K(vec_load)(m + LN); \
        const VEC_T y0 = K(vec_load)(y), y1 = K(vec_load)(y + LN); (void)y0; (void)y1; \
        STEPS \
    } \
    EACH_P(F_KEEP) \
}
#define SIGNED_STEP(p, T) { const VEC_T g = K(vec_of)(o->a[p][r * o->step_a]); \
                            s##p##0 = K(add_signed)(s##p##0, m0 - f##p##0, g); \
                            s##p##1 = K(add_signed)(s##p##1, m1 - f##p##1, g); }
#define SQUARED_STEP(p, T) { const VEC_T g = K(vec_of)(o->a[p][r * o->step_a]); \
                             s##p##0 += g * OF_SQUARE(m0, f##p##0); \
                             s##p##1 += g * OF_SQUARE(m1, f##p##1); }
/* where t is 0: a, else q */
#if LEVEL == 2 && IS_F32
#define OR_AT_0(t, a, q) ((VEC_T)_mm512_mask_blend_ps( \
    _mm512_cmp_ps_mask((__m512)(t), _mm512_setzero_ps(), _CMP_EQ_OQ), (__m512)(q), (__m512)(a)))
#elif LEVEL == 2
#define OR_AT_0(t, a, q) ((VEC_T)_mm512_mask_blend_pd( \
    _mm512_cmp_pd_mask((__m512d)(t), _mm512_setzero_pd(), _CMP_EQ_OQ), (__m512d)(q), (__m512d)(a)))
#else
#define OR_AT_0(t, a, q) K(vec_pick)((t) == 0, a, q)
#endif
#define QUOTIENT_STEP(p, T) { \
    const VEC_T a = K(vec_of)(o->a[p][r * o->step_a]), b = K(vec_of)(o->b[p][r * o->step_b]); \
    const VEC_T t0 = T(m0, f##p##0), t1 = T(m1, f##p##1); \
    s##p##0 += y0 * OR_AT_0(t0, a, b / t0); s##p##1 += y1 * OR_AT_0(t1, a, b / t1); }
#define SLOPE_ARG(p, T) { \
    const VEC_T t = K(vec_of)(o->c * o->t[p][r * o->step_t]); \
    v[2 * (p)] = m0 * f##p##0 - t; v[2 * (p) + 1] = m1 * f##p##1 - t; }
#define SLOPE_STEP(p, T) { \
    const VEC_T a = K(vec_of)(o->a[p][r * o->step_a]), b = K(vec_of)(o->b[p][r * o->step_b]); \
    s##p##0 += (a + b * y0) * y0 * v[2 * (p)]; s##p##1 += (a + b * y1) * y1 * v[2 * (p) + 1]; }
#define SLOPE_ALONE(p, T) { \
    const VEC_T a = K(vec_of)(o->a[p][r * o->step_a]); \
    s##p##0 += a * y0 * v[2 * (p)]; s##p##1 += a * y1 * v[2 * (p) + 1]; }
#define SLOPES(T, STEP) VEC_T v[2 * TP]; EACH_STEP(SLOPE_ARG, ) T(v, 2 * TP); EACH_STEP(STEP, )
COLUMN_TILE(signed_columns, EACH_STEP(SIGNED_STEP, ))
COLUMN_TILE(square_columns, EACH_STEP(SQUARED_STEP, ))
COLUMN_TILE(quotient_mul, EACH_STEP(QUOTIENT_STEP, OF_MUL))
COLUMN_TILE(quotient_add, EACH_STEP(QUOTIENT_STEP, OF_ADD))
COLUMN_TILE(quotient_sub, EACH_STEP(QUOTIENT_STEP, OF_SUB))
COLUMN_TILE(quotient_bus, EACH_STEP(QUOTIENT_STEP, OF_BUS))
COLUMN_TILE(quotient_less, EACH_STEP(QUOTIENT_STEP, OF_LESS))
COLUMN_TILE(quotient_more, EACH_STEP(QUOTIENT_STEP, OF_MORE))
#define SLOPE_TILES(NAME, T) \
    COLUMN_TILE(slope_##NAME, SLOPES(T, SLOPE_STEP)) COLUMN_TILE(slope_##NAME##_alone, SLOPES(T, SLOPE_ALONE))
SLOPE_TILES(exp, K(exp_all))
SLOPE_TILES(tanh, K(slopes_of_tanh))
SLOPE_TILES(sigmoid, K(slopes_of_sigmoid))
typedef void (*K(column_tile_t))(const K(columns_t) *, REAL *);
static const K(column_tile_t) K(QUOTIENTS)[] = {
    K(quotient_mul), K(quotient_add), K(quotient_sub), K(quotient_bus), NULL, NULL,
    K(quotient_less), K(quotient_more)};

static const K(column_tile_t) K(SLOPES)[N_WAVES][2] = {        /* without b, with b */
    {K(slope_exp_alone), K(slope_exp)}, {K(slope_tanh_alone), K(slope_tanh)},
    {K(slope_sigmoid_alone), K(slope_sigmoid)}, {NULL, NULL}};

/* Rows of c numbers, with zeros up to COLUMNS. */
static inline void K(pack_padded)(REAL *to, const REAL *from, int64_t step, int64_t rows, int64_t c) {
    for (int64_t row = 0; row < rows; row++, to += COLUMNS, from += step) {
        memcpy(to, from, c * sizeof(REAL));
        for (int64_t k = c; k < (int64_t)COLUMNS; k++) to[k] = 0;
    }
}
static inline const REAL *K(number_at)(const view_t *v, int64_t i0, int64_t i1, const REAL *none) {
    return v ? (const REAL *)v->data + i0 * v->stride[0] + i1 * v->stride[1] : none;
}

/* Sums of rows as they come from a tile, times 1 or -1. */
static inline void K(write_rows)(REAL *to, int64_t step, const REAL *from, int64_t rows, int64_t c,
                                 REAL sign) {
    for (int64_t row = 0; row < rows; row++, to += step, from += COLUMNS)
        for (int64_t k = 0; k < c; k += LN) {
            const VEC_T zero = {0};     /* a sum of -0 is 0 before its sign, as a total is */
            const VEC_T v = sign * (zero + K(vec_load)(from + k));
            if (c - k < LN) K(part_store)(to + k, v, c - k);
            else K(vec_store)(to + k, v);
        }
}

/* The sum over a1, where m varies along a1 and f along a0; a role of -1: none. Roles of FAST_COLUMNS,
 * +-a sign(m - f): a, m, f, sign; of FAST_SQUARES, a (m - f)^2: a, m, f; of FAST_QUOTIENTS: a, b, y,
 * m, f, the number of the term; of FAST_SLOPES: a, b, y, m, f, t, its sign, where a and y may be
 * exchanged. */
static int K(column_tiles)(const tape_t *tape, const loop_t *l, const domain_t *d) {
    const int is_signed = l->fast == FAST_COLUMNS, is_slope = l->fast == FAST_SLOPES;
    const int is_square = l->fast == FAST_SQUARES;
    const int is_of_three = is_signed || is_square;
    const int32_t *role = l->role;
    const view_t *v = d->v, *out = &v[l->n_in];
    const view_t *a = role[0] >= 0 ? &v[role[0]] : NULL, *m = &v[role[is_of_three ? 1 : 3]];
    const view_t *b = !is_of_three && role[1] >= 0 ? &v[role[1]] : NULL;
    const view_t *y = !is_of_three && role[2] >= 0 ? &v[role[2]] : NULL;
    const view_t *f = &v[role[is_of_three ? 2 : 4]];
    const view_t *t = is_slope && role[5] >= 0 ? &v[role[5]] : NULL;
    const int64_t np = d->n[0], nr = d->n[1], nq = d->n[2];
    double sign = is_signed ? role[3] : 1;
    int term = l->term;
    if (d->axis != 1 || d->indptr || nq < LN) return 0;
    if (is_slope && ((a && !K(is_number)(a)) || (y && K(is_number)(y)))) {
        const view_t *s = a; a = y; y = s;
    }
    if (m->stride[1] == 0) {
        const view_t *s = m; m = f; f = s; sign = is_signed ? -sign : 1;
        if (!is_slope && (term == T_SUB || term == T_BUS)) term = T_SUB + T_BUS - term;
    }
    if ((a && !K(is_number)(a)) || (b && !K(is_number)(b)) || (t && !K(is_number)(t))
        || (y && !K(is_rows)(y, 0)) || !K(is_rows)(m, 0) || !K(is_rows)(f, 1)) return 0;
    const REAL *ms = (const REAL *)m->data, *fs = (const REAL *)f->data;
    const REAL *ys = y ? (const REAL *)y->data : NULL;
    if (is_signed && !(K(all_finite)(ms, nr, m->stride[1], nq)
                       && K(all_finite)(fs, np, f->stride[0], nq)
                       && (!a || K(finite_numbers)(a, np, nr)))) return 0;   /* 0 times u is no 0 */
    if (is_slope && y && !K(all_finite)(ys, nr, y->stride[1], nq)) return 0;    /* b may be 0 */
    const K(column_tile_t) tile = is_signed ? K(signed_columns) : is_square ? K(square_columns)
                                : is_slope ? K(SLOPES)[term][b != NULL] : K(QUOTIENTS)[term];
    const REAL unit[2] = {0, 1};
    const int has_y = y && y != m;
    /* no rows: sums of nothing are written, not kept from before */
    const int is_direct = !l->accumulate && K(is_rows)(out, 1) && nr > 0 && nr <= (int64_t)DEEP;
    REAL pack[COLUMNS * DEEP], pack_y[COLUMNS * DEEP], fixed[COLUMNS * TILE_P], some[COLUMNS * TP];
    double total[COLUMNS * TILE_P];
    K(columns_t) o = {.m = pack, .y = y && !has_y ? pack : pack_y, .step_a = a ? a->stride[1] : 0,
                      .step_b = b ? b->stride[1] : 0, .step_t = t ? t->stride[1] : 0};
    if (is_slope) o.c = (REAL)role[6];
    else if (!is_of_three && role[5] >= 0) o.c = (REAL)value_of(tape, l->consts[role[5]]);
    if (!y && !is_of_three) for (int64_t k = 0; k < (int64_t)(COLUMNS * DEEP); k++) pack_y[k] = 1;
    for (int64_t q = 0; q < nq; q += COLUMNS)
        for (int64_t p0 = 0; p0 < np; p0 += TILE_P) {
            const int64_t c = nq - q < (int64_t)COLUMNS ? nq - q : (int64_t)COLUMNS;
            const int64_t pn = np - p0 < TILE_P ? np - p0 : TILE_P;
            memset(total, 0, sizeof total);
            K(pack_padded)(fixed, fs + p0 * f->stride[0] + q, f->stride[0], pn, c);
            for (int64_t r = 0; r < nr; r += DEEP) {
                o.n = nr - r < (int64_t)DEEP ? nr - r : (int64_t)DEEP;
                if (p0 == 0 || nr > (int64_t)DEEP) {    /* else it is there still */
                    K(pack_padded)(pack, ms + r * m->stride[1] + q, m->stride[1], o.n, c);
                    if (has_y) K(pack_padded)(pack_y, ys + r * y->stride[1] + q, y->stride[1], o.n, c);
                }
                for (int64_t p = 0; p < pn; p += TP) {
                    for (int64_t k = 0; k < TP; k++) {  /* past the end the last row again */
                        const int64_t row = p + k < pn ? p + k : pn - 1;
                        o.f[k] = fixed + row * COLUMNS;
                        o.a[k] = K(number_at)(a, p0 + row, r, unit + 1);
                        o.b[k] = K(number_at)(b, p0 + row, r, unit);
                        o.t[k] = K(number_at)(t, p0 + row, r, unit);
                    }
                    tile(&o, some);
                    const int64_t rows = pn - p < TP ? pn - p : TP;
                    if (is_direct)
                        K(write_rows)((REAL *)out->data + (p0 + p) * out->stride[0] + q, out->stride[0],
                                      some, rows, c, (REAL)sign);
                    else
                        for (int64_t k = 0; k < rows * (int64_t)COLUMNS; k++)
                            total[p * COLUMNS + k] += some[k];
                }
            }
            if (is_direct) continue;
            for (int64_t p = 0; p < pn; p++)
                for (int64_t k = 0; k < c; k++)
                    K(keep_result)(l, out, K(place)(out, 0, p0 + p) + K(place)(out, 2, q + k), 0,
                                   sign * total[p * COLUMNS + k], -1);
        }
    return 1;
}

/* ---- places ---- */
/* The sum over a1 of values only at the place along a2 that a view gives (the gradient of a
 * maximum): evaluated at those places alone. role: that view, the iota, the value. total: room for
 * the double sums of a row. */
static int K(places)(const loop_t *l, const domain_t *d, REAL **value, double *total) {
    const view_t *at = &d->v[l->role[0]], *iota = &d->v[l->role[1]], *out = &d->v[l->n_in];
    const int64_t n0 = d->n[0], n1 = d->n[1], n2 = d->n[2];
    const int is_long = n1 > TILE_R;
    if (d->axis != 1 || d->indptr || at->stride[2] != 0 || at->dtype != REAL_TYPE || at->index[0]
        || at->index[1] || out->dtype != REAL_TYPE || out->index[0] || out->index[2]
        || out->stride[2] != 1 || iota->stride[0] || iota->stride[1] || iota->stride[2] != 1
        || iota->index[2]) return 0;
    for (int k = 0; k < l->n_in; k++)
        if (k != l->role[1] && d->v[k].dtype != REAL_TYPE) return 0;
    const int64_t first = (int64_t)(intptr_t)iota->data;
    const int first_op = l->n_in + l->n_const;
    int64_t where[STRIP];
    for (int64_t i0 = 0; i0 < n0; i0++) {
        REAL *to = (REAL *)out->data + i0 * out->stride[0];
        if (is_long) memset(total, 0, n2 * sizeof(double));
        else memset(to, 0, n2 * sizeof(REAL));
        const REAL *as = (const REAL *)at->data + i0 * at->stride[0];
        for (int64_t i1 = 0; i1 < n1; i1 += STRIP) {
            const int64_t c = n1 - i1 < STRIP ? n1 - i1 : STRIP;
            for (int64_t j = 0; j < c; j++) {
                const REAL a = as[(i1 + j) * at->stride[1]] - (REAL)first;
                where[j] = a >= 0 && a < (REAL)n2 && a == FLOOR_(a) ? (int64_t)a : -1;
            }
            for (int k = 0; k < l->n_in; k++) {
                const view_t *v = &d->v[k];
                if (k == l->role[1]) continue;
                REAL *strip = value[k];
                const REAL *p = (const REAL *)v->data + K(place)(v, 0, i0);
                for (int64_t j = 0; j < c; j++)
                    strip[j] = p[K(place)(v, 1, i1 + j) + (where[j] < 0 ? 0 : K(place)(v, 2, where[j]))];
            }
            for (int k = 0; k < l->n_ops; k++) {
                const op_t *o = &l->ops[k];
                K(apply)(o->op, value[first_op + k], value[o->a], value[o->b], value[o->c], c, 0);
                if (first_op + k == l->role[2]) break;
            }
            const REAL *v = value[l->role[2]];
            for (int64_t j = 0; j < c; j++)
                if (where[j] < 0) continue;
                else if (is_long) total[where[j]] += v[j];
                else to[where[j]] += v[j];
        }
        for (int64_t i2 = 0; is_long && i2 < n2; i2++) to[i2] = (REAL)total[i2];
    }
    return 1;
}
#undef PRODUCT_BEGIN
#undef PRODUCT_STEP
#undef PRODUCT_LAST
#undef PRODUCT_KEEP
#undef OR_AT_0
