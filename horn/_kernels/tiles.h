/* Loops over pairs of rows as register tiles: included by strips.h, per dtype and level.
 *
 * Rows: out[p, q] = the sum, maximum or minimum over r of a term of x[p, r] and w[q, r], both
 * contiguous along r. TP x TQ results are in registers while r runs; what w has for TILE_Q results
 * and TILE_R places stays in the second-level cache for all of TILE_P.
 * Columns: out[p, q] = the sum over r of u[p, r] sign(m[r, q] - f[p, q]), contiguous along q. What m
 * has for TILE_R places of r and two vectors of q is packed once for TILE_P results.
 *
 * Sums are float within TILE_R places and double beyond. Extremes and signs of what is infinite or
 * no number go the general way, which has NumPy's answer to NaN.
 */
#if LEVEL == 2
#define TILE_BYTES 64
#define TP 4
#elif LEVEL == 1
#define TILE_BYTES 32
#define TP 2
#else
#define TILE_BYTES 16
#define TP 2
#endif
#define TQ 4
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
static inline VEC_T K(vec_part)(const REAL *p, int64_t n) {
    REAL some[TILE_BYTES / sizeof(REAL)] = {0};
    memcpy(some, p, n * sizeof(REAL));
    return K(vec_load)(some);
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
#define VEC_ADD(a, b) ((a) + (b))
#define OF_MUL(x, w) ((x) * (w))
#define OF_ADD(x, w) ((x) + (w))
#define OF_SUB(x, w) ((x) - (w))
#define OF_BUS(x, w) ((w) - (x))
#define OF_APART(x, w) ((VEC_T)((BITS_T)((x) - (w)) & ~SIGN_BIT))
#define OF_SQUARE(x, w) (((x) - (w)) * ((x) - (w)))

/* ---- rows ---- */
#define EACH_Q(X, p, T, J) X(p, 0, T, J) X(p, 1, T, J) X(p, 2, T, J) X(p, 3, T, J)
#if TP == 4
#define EACH_P(X) X(0) X(1) X(2) X(3)
#define EACH(X, T, J) EACH_Q(X, 0, T, J) EACH_Q(X, 1, T, J) EACH_Q(X, 2, T, J) EACH_Q(X, 3, T, J)
#else
#define EACH_P(X) X(0) X(1)
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
#define X_PART(p) const VEC_T x##p = K(vec_part)(xs##p + i, n - i);
#define W_PART(q) const VEC_T w##q = K(vec_part)(ws##q + i, n - i);

#define ROW_TILE(NAME, TERM, JOIN, BEGIN) \
static void K(NAME)(const REAL *const x[TP], const REAL *const w[TQ], int64_t n, REAL *to) { \
    const VEC_T begin = K(vec_of)(BEGIN); \
    EACH(TILE_BEGIN, TERM, JOIN) \
    EACH_P(X_ROW) EACH_W(W_ROW) \
    int64_t i = 0; \
    for (; i + LN <= n; i += LN) { \
        EACH_P(X_LOAD) EACH_W(W_LOAD) \
        EACH(TILE_STEP, TERM, JOIN) \
    } \
    if (i < n) { \
        WHOLE some[TILE_BYTES / sizeof(REAL)]; BITS_T here; \
        for (int64_t k = 0; k < LN; k++) some[k] = k < n - i ? -1 : 0; \
        memcpy(&here, some, sizeof here); \
        EACH_P(X_PART) EACH_W(W_PART) \
        EACH(TILE_LAST, TERM, JOIN) \
    } \
    EACH(TILE_KEEP, TERM, JOIN) \
}
typedef void (*K(row_tile_t))(const REAL *const *, const REAL *const *, int64_t, REAL *);
ROW_TILE(sum_apart, OF_APART, VEC_ADD, 0)
ROW_TILE(sum_square, OF_SQUARE, VEC_ADD, 0)
#define EXTREMES(NAME, TERM) \
    ROW_TILE(max_##NAME, TERM, VEC_MAX, -(REAL)INFINITY) \
    ROW_TILE(min_##NAME, TERM, VEC_MIN, (REAL)INFINITY)
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

static int K(all_finite)(const REAL *p, int64_t rows, int64_t step, int64_t n) {
    for (int64_t row = 0; row < rows; row++, p += step) {
        int bad = 0;
        for (int64_t i = 0; i < n; i++) bad |= !(p[i] - p[i] == 0);
        if (bad) return 0;
    }
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
#undef FIND
    return 0;
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

/* 0: the loop does not lie as it must. */
static int K(row_tiles)(const loop_t *l, const domain_t *d) {
    const view_t *x = &d->v[0], *w = &d->v[1], *out = &d->v[2];
    const int64_t np = d->n[0], nq = d->n[1], n = d->n[2];
    int term = l->term;
    if (d->axis != 2 || d->indptr || n < LN) return 0;
    if (x->stride[0] == 0) {
        const view_t *s = x; x = w; w = s;
        if (term == T_SUB || term == T_BUS) term = T_SUB + T_BUS - term;
    }
    for (int k = 0; k < 2; k++) {
        const view_t *v = k ? w : x;
        if (v->dtype != REAL_TYPE || v->index[0] || v->index[1] || v->index[2]
            || v->stride[2] != 1 || v->stride[!k] != 0) return 0;
    }
    const int monoid = l->reduce == R_ARGMAX ? R_MAX : l->reduce;
    const K(row_tile_t) tile = monoid == R_SUM ? K(ROW_SUMS)[term]
                             : monoid == R_MAX ? K(ROW_MAXIMA)[term] : K(ROW_MINIMA)[term];
    if (!tile) return 0;
    if (monoid != R_SUM && !(K(all_finite)((REAL *)x->data, np, x->stride[0], n)
                             && K(all_finite)((REAL *)w->data, nq, w->stride[1], n))) return 0;
    const double none = monoid == R_SUM ? 0 : monoid == R_MAX ? -INFINITY : INFINITY;
    double total[TILE_P * TILE_Q];
    REAL lanes[TP * TQ * TILE_BYTES / sizeof(REAL)];
    for (int64_t q0 = 0; q0 < nq; q0 += TILE_Q)
        for (int64_t p0 = 0; p0 < np; p0 += TILE_P) {
            const int64_t pn = np - p0 < TILE_P ? np - p0 : TILE_P;
            const int64_t qn = nq - q0 < TILE_Q ? nq - q0 : TILE_Q;
            for (int64_t k = 0; k < TILE_P * TILE_Q; k++) total[k] = none;
            for (int64_t r = 0; r < n; r += TILE_R) {
                const int64_t c = n - r < TILE_R ? n - r : TILE_R;
                for (int64_t p = 0; p < pn; p += TP)
                    for (int64_t q = 0; q < qn; q += TQ) {
                        const REAL *xs[TP], *ws[TQ];
                        for (int k = 0; k < TP; k++)
                            xs[k] = (const REAL *)x->data + r
                                    + (p0 + (p + k < pn ? p + k : pn - 1)) * x->stride[0];
                        for (int k = 0; k < TQ; k++)
                            ws[k] = (const REAL *)w->data + r
                                    + (q0 + (q + k < qn ? q + k : qn - 1)) * w->stride[1];
                        tile(xs, ws, c, lanes);
                        for (int k = 0; k < TP; k++)
                            for (int j = 0; j < TQ; j++) {
                                double *to = total + (p + k) * TILE_Q + q + j;
                                const REAL v = K(lanes)(monoid, lanes + (k * TQ + j) * LN);
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

/* to = the sums of TP rows over some places. m : packed. f, u : a row of each, u's in steps. */
static void K(column_tile)(const REAL *m, const REAL *const f[TP], const REAL *const u[TP],
                           int64_t step, int64_t n, REAL *to) {
#define F_LOAD(p) const VEC_T f##p##0 = K(vec_load)(f[p]), f##p##1 = K(vec_load)(f[p] + LN); \
                  VEC_T s##p##0 = {0}, s##p##1 = {0}; const REAL *u##p = u[p];
#define F_STEP(p) { const VEC_T g = K(vec_of)(u##p[r * step]); \
                    s##p##0 = K(add_signed)(s##p##0, m0 - f##p##0, g); \
                    s##p##1 = K(add_signed)(s##p##1, m1 - f##p##1, g); }
#define F_KEEP(p) K(vec_store)(to + (p) * COLUMNS, s##p##0); \
                  K(vec_store)(to + (p) * COLUMNS + LN, s##p##1);
    EACH_P(F_LOAD)
    for (int64_t r = 0; r < n; r++, m += COLUMNS) {
        const VEC_T m0 = K(vec_load)(m), m1 = K(vec_load)(m + LN);
        EACH_P(F_STEP)
    }
    EACH_P(F_KEEP)
#undef F_LOAD
#undef F_STEP
#undef F_KEEP
}

static inline void K(pack_rows)(REAL *to, const REAL *from, int64_t step, int64_t rows, int64_t c) {
    for (int64_t row = 0; row < rows; row++, to += COLUMNS, from += step) {
        memcpy(to, from, c * sizeof(REAL));
        for (int64_t k = c; k < (int64_t)COLUMNS; k++) to[k] = 0;
    }
}

/* The sum over a1 of +-u sign(m - f), where m varies along a1 and f along a0. */
static int K(column_tiles)(const loop_t *l, const domain_t *d) {
    const view_t *u = &d->v[l->role[0]], *m = &d->v[l->role[1]], *f = &d->v[l->role[2]];
    const view_t *out = &d->v[3];
    const int64_t np = d->n[0], nr = d->n[1], nq = d->n[2];
    double sign = l->role[3];
    if (d->axis != 1 || d->indptr || nq < LN) return 0;
    if (m->stride[1] == 0) { const view_t *s = m; m = f; f = s; sign = -sign; }
    if (u->dtype != REAL_TYPE || m->dtype != REAL_TYPE || f->dtype != REAL_TYPE) return 0;
    for (int k = 0; k < 3; k++)
        if (u->index[k] || m->index[k] || f->index[k]) return 0;
    if (u->stride[2] != 0 || m->stride[2] != 1 || m->stride[0] != 0 || f->stride[2] != 1
        || f->stride[1] != 0) return 0;
    const REAL *us = (const REAL *)u->data, *ms = (const REAL *)m->data, *fs = (const REAL *)f->data;
    if (!K(all_finite)(ms, nr, m->stride[1], nq) || !K(all_finite)(fs, np, f->stride[0], nq)) return 0;
    REAL pack[COLUMNS * DEEP], fixed[COLUMNS * TILE_P], some[COLUMNS * TP];
    double total[COLUMNS * TILE_P];
    for (int64_t q = 0; q < nq; q += COLUMNS)
        for (int64_t p0 = 0; p0 < np; p0 += TILE_P) {
            const int64_t c = nq - q < (int64_t)COLUMNS ? nq - q : (int64_t)COLUMNS;
            const int64_t pn = np - p0 < TILE_P ? np - p0 : TILE_P;
            memset(total, 0, sizeof total);
            K(pack_rows)(fixed, fs + p0 * f->stride[0] + q, f->stride[0], pn, c);
            for (int64_t r = 0; r < nr; r += DEEP) {
                const int64_t rn = nr - r < (int64_t)DEEP ? nr - r : (int64_t)DEEP;
                if (p0 == 0 || nr > (int64_t)DEEP)      /* else it is there still */
                    K(pack_rows)(pack, ms + r * m->stride[1] + q, m->stride[1], rn, c);
                for (int64_t p = 0; p < pn; p += TP) {
                    const REAL *fp[TP], *up[TP];
                    for (int64_t k = 0; k < TP; k++) {  /* past the end the last row again */
                        const int64_t row = p + k < pn ? p + k : pn - 1;
                        fp[k] = fixed + row * COLUMNS;
                        up[k] = us + (p0 + row) * u->stride[0] + r * u->stride[1];
                    }
                    K(column_tile)(pack, fp, up, u->stride[1], rn, some);
                    const int64_t n = (pn - p < TP ? pn - p : TP) * COLUMNS;
                    for (int64_t k = 0; k < n; k++) total[p * COLUMNS + k] += some[k];
                }
            }
            for (int64_t p = 0; p < pn; p++)
                for (int64_t k = 0; k < c; k++)
                    K(keep_result)(l, out, K(place)(out, 0, p0 + p) + K(place)(out, 2, q + k), 0,
                                   sign * total[p * COLUMNS + k], -1);
        }
    return 1;
}

/* ---- places ---- */
/* The sum over a1 of what is there only at the place along a2 that a view says (the gradient of a
 * maximum): evaluated at those places alone. role: that view, the iota, the value. */
static int K(places)(const loop_t *l, const domain_t *d, REAL **value) {
    const view_t *at = &d->v[l->role[0]], *iota = &d->v[l->role[1]], *out = &d->v[l->n_in];
    const int64_t n0 = d->n[0], n1 = d->n[1], n2 = d->n[2];
    if (d->axis != 1 || d->indptr || at->stride[2] != 0 || at->dtype != REAL_TYPE || at->index[0]
        || at->index[1] || out->dtype != REAL_TYPE || out->index[0] || out->index[2]
        || out->stride[2] != 1 || iota->stride[0] || iota->stride[1] || iota->index[2]) return 0;
    for (int k = 0; k < l->n_in; k++)
        if (k != l->role[1] && d->v[k].dtype != REAL_TYPE) return 0;
    const int64_t first = (int64_t)(intptr_t)iota->data;
    const int first_op = l->n_in + l->n_const;
    int64_t where[STRIP];
    for (int64_t i0 = 0; i0 < n0; i0++) {
        REAL *to = (REAL *)out->data + i0 * out->stride[0];
        memset(to, 0, n2 * sizeof(REAL));
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
            for (int64_t j = 0; j < c; j++) if (where[j] >= 0) to[where[j]] += v[j];
        }
    }
    return 1;
}
#undef TILE_BYTES
#undef TP
#undef TQ
#undef LN
#undef WHOLE
#undef SIGN_BIT
#undef VEC_T
#undef BITS_T
#undef VEC_MAX
#undef VEC_MIN
#undef VEC_ADD
#undef OF_MUL
#undef OF_ADD
#undef OF_SUB
#undef OF_BUS
#undef OF_APART
#undef OF_SQUARE
#undef EACH_P
#undef EACH_Q
#undef EACH_W
#undef EACH
#undef TILE_BEGIN
#undef TILE_STEP
#undef TILE_LAST
#undef TILE_KEEP
#undef X_ROW
#undef W_ROW
#undef X_LOAD
#undef W_LOAD
#undef X_PART
#undef W_PART
#undef ROW_TILE
#undef EXTREMES
#undef COLUMNS
#undef DEEP
#undef TILE_P
#undef TILE_Q
#undef TILE_R
