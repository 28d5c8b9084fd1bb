/* Loading: the rows of a batch from the data into an array, scaled, centered, or turned so that the
 * samples lie side by side. Part of strips.h.
 */
#if LEVEL == 2 && IS_F32
/* 16 samples of 16 features, transposed and scaled: out[c * step + r] = scale * row[r][c]. */
static inline void K(turn)(__m512 r[16], float scale, float *out, int64_t step) {
    __m512 t[16];
    const __m512 by = _mm512_set1_ps(scale);
    transpose16_of(r, t);
    for (int i = 0; i < 16; i++) _mm512_storeu_ps(out + i * step, _mm512_mul_ps(by, r[i]));
}
#define LOAD_TURNED(T) \
    if (sizeof(T) == 1) { \
        for (; j + 16 <= hi; j += 16) { \
            __m512 r[16]; \
            for (int l = 0; l < 16; l++) r[l] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32( \
                _mm_loadu_si128((const __m128i *)(const void *)(p[l] + j)))); \
            K(turn)(r, scale, (float *)out + i + j * s1, s1); \
        } \
    } else if (g->dtype == F32) { \
        for (; j + 16 <= hi; j += 16) { \
            __m512 r[16]; \
            for (int l = 0; l < 16; l++) r[l] = _mm512_loadu_ps((const void *)(p[l] + j)); \
            K(turn)(r, scale, (float *)out + i + j * s1, s1); \
        } \
    }
#else
#define LOAD_TURNED(T)
#endif
/* The loaded value of a number of column j. For doubles the difference from the center is in
 * double: float has no digits left for the difference of a time in seconds from its mean. */
#define SCALED(v, j) (scale * (REAL)(v))
#define APART(v, j) ((whole * (v) - center[j]) * factor[j])
#define LOAD_ROWS(T, V) { \
    REAL *out = (REAL *)g->out; \
    if (s1 == 1) { \
        for (int64_t i = lo; i < hi; i++) { \
            const T *p = (const T *)(g->source + g->index[i] * g->row_stride); \
            REAL *q = out + i * s0; \
            if (cs == 1) for (int64_t j = 0; j < n; j++) q[j] = (REAL)V(p[j], j); \
            else for (int64_t j = 0; j < n; j++) q[j] = (REAL)V(p[j * cs], j); \
        } \
    } else { \
        for (int64_t i = 0; i < b; i += 16) { \
            const T *p[16] = {0}; int64_t c = b - i < 16 ? b - i : 16; \
            for (int64_t l = 0; l < c; l++) \
                p[l] = (const T *)(g->source + g->index[i + l] * g->row_stride); \
            if (c == 16 && s0 == 1) { \
                int64_t j = lo; \
                if (cs == 1) { LOAD_TURNED(T) } \
                for (; j < hi; j++) { \
                    REAL *q = out + i + j * s1; \
                    for (int l = 0; l < 16; l++) q[l] = (REAL)V(p[l][j * cs], j); \
                } \
            } else { \
                for (int64_t j = lo; j < hi; j++) \
                    for (int64_t l = 0; l < c; l++) \
                        out[(i + l) * s0 + j * s1] = (REAL)V(p[l][j * cs], j); \
            } \
        } \
    } \
    break; }
#define LOAD_WHOLE(T, U) { \
    U *out = (U *)g->out; \
    for (int64_t i = 0; i < b; i++) { \
        const T *p = (const T *)(g->source + g->index[i] * g->row_stride); \
        for (int64_t j = 0; j < n; j++) out[i * s0 + j * s1] = (U)p[j * cs]; \
    } \
    break; }
#define LOAD_SCALED(T) LOAD_ROWS(T, SCALED)
#define LOAD_I32(T) LOAD_WHOLE(T, int32_t)
#define LOAD_I64(T) LOAD_WHOLE(T, int64_t)

/* (value - center) * factor of each column, for the rows and columns that this thread has
 * loaded. */
static void K(normalize)(const load_t *g, int64_t b, int64_t n, int64_t lo, int64_t hi) {
    const REAL *center = (const REAL *)(const void *)g->center;
    const REAL *factor = (const REAL *)(const void *)g->factor;
    const int64_t s0 = g->stride[0], s1 = g->stride[1];
    REAL *out = (REAL *)(void *)g->out;
    if (s1 == 1)
        for (int64_t i = lo; i < hi; i++) {
            REAL *q = out + i * s0;
            for (int64_t j = 0; j < n; j++) q[j] = (q[j] - center[j]) * factor[j];
        }
    else
        for (int64_t j = lo; j < hi; j++) {
            const REAL c = center[j], f = factor[j];
            REAL *q = out + j * s1;
            for (int64_t i = 0; i < b; i++) q[i * s0] = (q[i * s0] - c) * f;
        }
}

static void K(load)(const tape_t *t, const load_t *g, int tid, int nt) {
    const int64_t b = resolve(t, g->rows), n = resolve(t, g->cols), s0 = g->stride[0];
    const int64_t s1 = g->stride[1], cs = g->col_stride;
    const REAL scale = (REAL)value_of(t, g->scale);
    int64_t lo, hi;
    if (are_numbers_alone(b, n)) { if (tid) return; nt = 1; }
    if (g->out_dtype != REAL_TYPE) {            /* whole numbers: labels */
        if (tid) return;
        if (g->out_dtype == I32)
            switch (g->dtype) { EACH_DTYPE(LOAD_I32) }
        else if (g->out_dtype == I64)
            switch (g->dtype) { EACH_DTYPE(LOAD_I64) }
        return;
    }
    if (s1 == 1) share(b, tid, nt, 1, &lo, &hi);
    else share(n, tid, nt, 16, &lo, &hi);
    if (g->center && g->dtype == F64) {
        const double *center = (const double *)(const void *)g->center, whole = value_of(t, g->scale);
        const double *factor = (const double *)(const void *)g->factor;
        do LOAD_ROWS(double, APART) while (0);
        return;
    }
    switch (g->dtype) { EACH_DTYPE(LOAD_SCALED) }
    if (g->center) K(normalize)(g, b, n, lo, hi);
}
#undef LOAD_TURNED
