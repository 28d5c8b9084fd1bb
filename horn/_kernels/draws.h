/* Random draws: of neurons into arrays, and of messages where a loop reads them. Part of strips.h.
 *
 * Numbers are words of Philox4x32-10 by counter, as those of horn/random.py, which has the source.
 */
#define PHILOX_LANES 16
/* Ten rounds on PHILOX_LANES counters at once; 32-bit words in 64-bit lanes, as vpmuludq wants. */
#if LEVEL == 2
#define VEC __m512i
#define VLEN 8
#define V_SET(x) _mm512_set1_epi64(x)
#define V_LOAD(p) _mm512_loadu_si512((const void *)(p))
#define V_STORE(p, x) _mm512_storeu_si512((void *)(p), x)
#define V_MUL(a, b) _mm512_mul_epu32(a, b)
#define V_HIGH(a) _mm512_srli_epi64(a, 32)
#define V_XOR(a, b) _mm512_xor_si512(a, b)
#define V_ADD(a, b) _mm512_add_epi64(a, b)
#elif LEVEL == 1
#define VEC __m256i
#define VLEN 4
#define V_SET(x) _mm256_set1_epi64x(x)
#define V_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define V_STORE(p, x) _mm256_storeu_si256((__m256i *)(p), x)
#define V_MUL(a, b) _mm256_mul_epu32(a, b)
#define V_HIGH(a) _mm256_srli_epi64(a, 32)
#define V_XOR(a, b) _mm256_xor_si256(a, b)
#define V_ADD(a, b) _mm256_add_epi64(a, b)
#elif defined(HORN_X86)
#define VEC __m128i
#define VLEN 2
#define V_SET(x) _mm_set1_epi64x(x)
#define V_LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define V_STORE(p, x) _mm_storeu_si128((__m128i *)(p), x)
#define V_MUL(a, b) _mm_mul_epu32(a, b)
#define V_HIGH(a) _mm_srli_epi64(a, 32)
#define V_XOR(a, b) _mm_xor_si128(a, b)
#define V_ADD(a, b) _mm_add_epi64(a, b)
#else
#define VEC uint64_t
#define VLEN 1
#define V_SET(x) ((uint64_t)(x))
#define V_LOAD(p) (*(p))
#define V_STORE(p, x) (*(p) = (x))
#define V_MUL(a, b) (((a) & 0xffffffffu) * (b))
#define V_HIGH(a) ((a) >> 32)
#define V_XOR(a, b) ((a) ^ (b))
#define V_ADD(a, b) ((a) + (b))
#endif
static void K(philox)(const uint32_t key[2], uint64_t w[4][PHILOX_LANES]) {
    const VEC m0 = V_SET(0xD2511F53u), m1 = V_SET(0xCD9E8D57u);
    for (int lane = 0; lane < PHILOX_LANES; lane += 2 * VLEN) {
        VEC a0 = V_LOAD(w[0] + lane), a1 = V_LOAD(w[1] + lane);
        VEC a2 = V_LOAD(w[2] + lane), a3 = V_LOAD(w[3] + lane);
        VEC b0 = V_LOAD(w[0] + lane + VLEN), b1 = V_LOAD(w[1] + lane + VLEN);
        VEC b2 = V_LOAD(w[2] + lane + VLEN), b3 = V_LOAD(w[3] + lane + VLEN);
        uint32_t k0 = key[0], k1 = key[1];
        for (int round = 0; round < 10; round++) {
            const VEC v0 = V_SET((uint64_t)k0), v1 = V_SET((uint64_t)k1);
            VEC la = V_MUL(a0, m0), ha = V_MUL(a2, m1), lb = V_MUL(b0, m0), hb = V_MUL(b2, m1);
            /* the upper halves of a1, a3 hold rubbish from the products; only low words count */
            a0 = V_XOR(V_XOR(V_HIGH(ha), a1), v0); a1 = ha;
            a2 = V_XOR(V_XOR(V_HIGH(la), a3), v1); a3 = la;
            b0 = V_XOR(V_XOR(V_HIGH(hb), b1), v0); b1 = hb;
            b2 = V_XOR(V_XOR(V_HIGH(lb), b3), v1); b3 = lb;
            k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
        }
        V_STORE(w[0] + lane, a0); V_STORE(w[1] + lane, a1);
        V_STORE(w[2] + lane, a2); V_STORE(w[3] + lane, a3);
        V_STORE(w[0] + lane + VLEN, b0); V_STORE(w[1] + lane + VLEN, b1);
        V_STORE(w[2] + lane + VLEN, b2); V_STORE(w[3] + lane + VLEN, b3);
    }
}

#define TO_UNIT(w) ((REAL)(int32_t)((uint32_t)(w) >> 8) * (REAL)5.9604644775390625e-08)

/* The middle of the 2**-32 that a word stands for. */
static inline double K(middle)(uint64_t w) {
    const double whole = from_bits_f64((w & 0xffffffffu) | 0x4330000000000000u) - 4503599627370496.0;
    return (whole + 0.5) * 2.3283064365386963e-10;
}
/* Standard normals of two words each (Box and Muller), in double as horn.random has them. */
static void K(normals)(const uint64_t *a, const uint64_t *b, REAL *to) {
    for (int l = 0; l < PHILOX_LANES; l++) {
        const double wave = sine_f64(waves_f64(6.283185307179586 * K(middle)(b[l])), 1);
        to[l] = (REAL)(sqrt(-2.0 * log_f64(K(middle)(a[l]))) * wave);
    }
}

/* Blocks of 4 neurons (2 for normals) times 16 samples, or 16 blocks times one sample. */
static void K(draw)(const tape_t *t, const draw_t *g, int tid, int nt) {
    const int64_t b = resolve(t, g->rows), n = resolve(t, g->neurons);
    const int64_t s0 = g->stride[0], s1 = g->stride[1];
    const uint32_t iteration = (uint32_t)t->dims[g->iteration];
    const int normal = g->kind == D_NORMAL, bernoulli = g->kind == D_BERNOULLI;
    const int64_t per = normal ? 2 : 4;
    const REAL below = bernoulli ? (REAL)value_of(t, g->below) : 0;
    const uint64_t mark = (uint64_t)((g->site << 16) | 0) & 0xffffffffu;
    REAL *out = (REAL *)g->out;
    if (b <= 0 || n <= 0) return;
    if (are_numbers_alone(b, n)) { if (tid) return; nt = 1; }
    const int64_t q_first = g->first / per, q_last = (g->first + n - 1) / per + 1;
    uint64_t w[4][PHILOX_LANES];
    REAL u[4][PHILOX_LANES];

    const int by_sample = s0 == 1 || s1 != 1;   /* neuron-major: lanes are samples */
    int64_t lo, hi;
    if (by_sample) share(q_last - q_first, tid, nt, 1, &lo, &hi);
    else share(b, tid, nt, 1, &lo, &hi);
    const int64_t outer_end = hi, inner_end = by_sample ? b : q_last - q_first;
    for (int64_t o = lo; o < outer_end; o++) {
        for (int64_t i = 0; i < inner_end; i += PHILOX_LANES) {
            const int64_t lanes = inner_end - i < PHILOX_LANES ? inner_end - i : PHILOX_LANES;
            for (int l = 0; l < PHILOX_LANES; l++) {
                int64_t at = i + (l < lanes ? l : 0);
                int64_t row = by_sample ? at : o, q = q_first + (by_sample ? o : at);
                uint64_t s = g->samples ? g->samples[row] : ~(uint64_t)0;
                w[0][l] = (uint64_t)q & 0xffffffffu; w[1][l] = s & 0xffffffffu;
                w[2][l] = iteration;
                w[3][l] = (mark ^ (s >> 32)) | (normal ? 0x80000000u : 0);
            }
            K(philox)(g->key, w);
            if (normal) {
                for (int k = 0; k < 2; k++) K(normals)(w[2 * k], w[2 * k + 1], u[k]);
            } else if (bernoulli) {
                for (int k = 0; k < 4; k++)
                    for (int l = 0; l < PHILOX_LANES; l++)
                        u[k][l] = TO_UNIT(w[k][l]) < below ? (REAL)1 : (REAL)0;
            } else {
                for (int k = 0; k < 4; k++)
                    for (int l = 0; l < PHILOX_LANES; l++) u[k][l] = TO_UNIT(w[k][l]);
            }
            if (by_sample) {
                for (int64_t k = 0; k < per; k++) {
                    int64_t j = (q_first + o) * per + k - g->first;
                    if (j < 0 || j >= n) continue;
                    REAL *p = out + j * s1 + i * s0;
                    if (s0 == 1 && lanes == PHILOX_LANES)
                        for (int l = 0; l < PHILOX_LANES; l++) p[l] = u[k][l];
                    else
                        for (int64_t l = 0; l < lanes; l++) p[l * s0] = u[k][l];
                }
            } else {
                int64_t j = (q_first + i) * per - g->first;
                REAL *p = out + o * s0 + j;
                if (j >= 0 && j + lanes * per <= n && per == 4) {
                    for (int64_t l = 0; l < lanes; l++)
                        for (int k = 0; k < 4; k++) p[4 * l + k] = u[k][l];
                } else {
                    for (int64_t l = 0; l < lanes; l++)
                        for (int64_t k = 0; k < per; k++) {
                            int64_t at = l * per + k;
                            if (j + at >= 0 && j + at < n) p[at] = u[k][l];
                        }
                }
            }
        }
    }
}

/* ---- draws of messages, inside a loop ---- */
#define DRAWN_LANES 64
/* Ten rounds on n counters of one iteration, with a key each: its words are the halves of `key`. */
static void K(philox_keys)(const uint64_t *key, const uint64_t *block, const uint64_t *low,
                           uint64_t step, const uint64_t *last, int64_t n,
                           uint64_t w[4][DRAWN_LANES]) {
    const VEC m0 = V_SET(0xD2511F53u), m1 = V_SET(0xCD9E8D57u);
    const VEC w0 = V_SET(0x9E3779B9u), w1 = V_SET(0xBB67AE85u);
    for (int64_t l = 0; l < n; l += VLEN) {
        VEC k0 = V_LOAD(key + l), k1 = V_HIGH(k0);
        VEC a0 = V_LOAD(block + l), a1 = V_LOAD(low + l), a2 = V_SET(step), a3 = V_LOAD(last + l);
        for (int round = 0; round < 10; round++) {  /* only low words count, as in philox */
            const VEC low_product = V_MUL(a0, m0), high_product = V_MUL(a2, m1);
            a0 = V_XOR(V_XOR(V_HIGH(high_product), a1), k0); a1 = high_product;
            a2 = V_XOR(V_XOR(V_HIGH(low_product), a3), k1); a3 = low_product;
            k0 = V_ADD(k0, w0); k1 = V_ADD(k1, w1);
        }
        V_STORE(w[0] + l, a0); V_STORE(w[1] + l, a1);
        V_STORE(w[2] + l, a2); V_STORE(w[3] + l, a3);
    }
}

static inline uint64_t K(counter3)(const drawn_t *g, uint64_t sample) {
    const uint32_t normal = g->kind == D_NORMAL ? 0x80000000u : 0;
    return ((uint32_t)(g->site << 16) ^ (uint32_t)(sample >> 32)) | normal;
}

#if LEVEL == 2 && IS_F32
/* The common part of the uniforms of one receiver's messages. Three of a counter's four words are
 * the same for all, and so is half of the first two rounds: second, lo1 and hi1 come of products
 * of these words. */
typedef struct { __m512i key0[10], key1[10], last, second, lo1, hi1; } uniforms_t;

static inline void uniforms_of(uniforms_t *u, const uint32_t key[2], uint64_t low, uint64_t step,
                               uint64_t last) {
    uint32_t k0 = key[0], k1 = key[1];
    const uint64_t high = (uint64_t)(uint32_t)step * 0xCD9E8D57u;
    const uint32_t first = (uint32_t)(high >> 32) ^ (uint32_t)low ^ k0;
    const uint64_t next = (uint64_t)first * 0xD2511F53u;
    u->last = _mm512_set1_epi64((int64_t)(last ^ k1));
    for (int round = 0; round < 10; round++) {
        u->key0[round] = _mm512_set1_epi64(k0); u->key1[round] = _mm512_set1_epi64(k1);
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    u->second = _mm512_xor_si512(_mm512_set1_epi64((int64_t)high), u->key0[1]);
    u->lo1 = _mm512_set1_epi64((int64_t)next);
    u->hi1 = _mm512_xor_si512(_mm512_set1_epi64((int64_t)(next >> 32)), u->key1[1]);
}

/* The uniforms of 8 n_v blocks from block q on, at places p to p + 32 n_v of `to`, except places
 * outside 0 to n. The upper halves of words are undefined; only low words count. */
static inline __attribute__((always_inline)) void uniforms_at(
    const uniforms_t *u, const int n_v, int64_t q, int64_t p, int64_t n, float *to) {
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53u), m1 = _mm512_set1_epi64(0xCD9E8D57u);
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  /* as unpacking wants them */
    const __m512 unit = _mm512_set1_ps(5.9604644775390625e-08f);
    __m512i a0[4], a1[4], a2[4], a3[4];
    for (int v = 0; v < n_v; v++) {
        const __m512i l = _mm512_mul_epu32(_mm512_add_epi64(order, _mm512_set1_epi64(q + 8 * v)), m0);
        a2[v] = _mm512_xor_si512(_mm512_srli_epi64(l, 32), u->last);
        a1[v] = _mm512_mul_epu32(a2[v], m1);
        a0[v] = _mm512_xor_si512(_mm512_srli_epi64(a1[v], 32), u->second);
        a2[v] = _mm512_xor_si512(l, u->hi1); a3[v] = u->lo1;
    }
    for (int round = 2; round < 10; round++)
        for (int v = 0; v < n_v; v++) {
            const __m512i l = _mm512_mul_epu32(a0[v], m0), h = _mm512_mul_epu32(a2[v], m1);
            a0[v] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(h, 32), a1[v], u->key0[round], 0x96);
            a2[v] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(l, 32), a3[v], u->key1[round], 0x96);
            a1[v] = h; a3[v] = l;
        }
    for (int v = 0; v < n_v; v++, p += 32) {
        const __m512i x = _mm512_mask_blend_epi32(0xaaaa, a0[v], _mm512_slli_epi64(a1[v], 32));
        const __m512i y = _mm512_mask_blend_epi32(0xaaaa, a2[v], _mm512_slli_epi64(a3[v], 32));
        const __m512i some[2] = {_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y)};
        for (int half = 0; half < 2; half++) {
            const int64_t at = p + 16 * half, before = at < 0 ? -at : 0, there = n - at;
            const __mmask16 m = (__mmask16)((0xffffu << before)
                                            & (there >= 16 ? 0xffffu : there > 0 ? (1u << there) - 1 : 0));
            _mm512_mask_storeu_ps(to + at, m, _mm512_mul_ps(
                _mm512_cvtepi32_ps(_mm512_srli_epi32(some[half], 8)), unit));
        }
    }
}
#endif

/* n messages of one receiver from neighbouring sources: 16 blocks of 4 (2 for normals) at a
 * time. */
static void K(drawn_row)(const drawn_t *g, int64_t row, int64_t key, int64_t source, int64_t n,
                         REAL *to) {
    const int normal = g->kind == D_NORMAL, per = normal ? 2 : 4;
    const uint64_t s = g->samples ? g->samples[row] : ~(uint64_t)0;
    const uint64_t low = s & 0xffffffffu, last = K(counter3)(g, s), step = (uint32_t)*g->iteration;
    uint64_t w[4][PHILOX_LANES];
    REAL z[2][PHILOX_LANES];
    int64_t q = source / per;
#if LEVEL == 2 && IS_F32
    if (!normal) {
        uniforms_t u;
        int64_t p = 4 * q - source;
        uniforms_of(&u, g->keys + 2 * key, low, step, last);
        for (; p + 128 <= n; p += 128, q += 32) uniforms_at(&u, 4, q, p, n, to);
        for (; p < n; p += 32, q += 8) uniforms_at(&u, 1, q, p, n, to);
        return;
    }
#endif
    for (int64_t p = q * per - source; p < n; p += PHILOX_LANES * per, q += PHILOX_LANES) {
        for (int l = 0; l < PHILOX_LANES; l++) {
            w[0][l] = (uint64_t)(q + l) & 0xffffffffu; w[1][l] = low;
            w[2][l] = step; w[3][l] = last;
        }
        K(philox)(g->keys + 2 * key, w);
        if (!normal && p >= 0 && p + 4 * PHILOX_LANES <= n) {
            for (int l = 0; l < PHILOX_LANES; l++)
                for (int k = 0; k < 4; k++) to[p + 4 * l + k] = TO_UNIT(w[k][l]);
            continue;
        }
        if (normal)
            for (int k = 0; k < 2; k++) K(normals)(w[2 * k], w[2 * k + 1], z[k]);
        if (normal && p >= 0 && p + 2 * PHILOX_LANES <= n) {
            for (int l = 0; l < PHILOX_LANES; l++)
                for (int k = 0; k < 2; k++) to[p + 2 * l + k] = z[k][l];
            continue;
        }
        for (int l = 0; l < PHILOX_LANES; l++)
            for (int k = 0; k < per; k++) {
                const int64_t at = p + per * l + k;
                if (at >= 0 && at < n) to[at] = normal ? z[k][l] : TO_UNIT(w[k][l]);
            }
    }
}

/* Edges of one tile by counter and key: edges of a receiver whose sources share a counter have one
 * block, since they mostly come one after another. */
typedef struct {
    uint64_t key[DRAWN_LANES], block[DRAWN_LANES];
    int64_t n_blocks;
    uint16_t of[DRAWN_LANES], word[DRAWN_LANES];    /* an edge's block, and its (first) word of it */
} K(blocks_t);

/* The draws of n messages with these words, `step` places apart. */
static inline __attribute__((always_inline)) void K(put_drawn)(
    int kind, const uint64_t *a, const uint64_t *b, int64_t n, REAL *to, int64_t step) {
    if (kind == D_NORMAL)
        for (int64_t l = 0; l < n; l += PHILOX_LANES) {
            REAL z[PHILOX_LANES];
            K(normals)(a + l, b + l, z);
            for (int64_t k = 0; k < PHILOX_LANES && l + k < n; k++) to[(l + k) * step] = z[k];
        }
    else if (step == 1) { IVDEP for (int64_t l = 0; l < n; l++) to[l] = TO_UNIT(a[l]); }
    else for (int64_t l = 0; l < n; l++) to[l * step] = TO_UNIT(a[l]);
}

/* Draws of m edges, `e_step` places apart, by n samples, `s_step` apart. Lanes are blocks if
 * there are few samples, and else samples. */
#define FEW_SAMPLES 16
static void K(drawn_edges)(const drawn_t *g, const K(blocks_t) *x, int64_t m, int64_t e_step,
                           int64_t first, const int32_t *rows, int64_t n, int64_t s_step,
                           REAL *to) {
    uint64_t low[DRAWN_LANES], last[DRAWN_LANES], w[4][DRAWN_LANES];
    const uint64_t step = (uint32_t)*g->iteration;
    const int64_t at_once = n < FEW_SAMPLES ? 1 : DRAWN_LANES;
    for (int64_t s0 = 0; s0 < n; s0 += at_once) {
        const int64_t here = n - s0 < at_once ? n - s0 : at_once;
        for (int64_t l = 0; l < here; l++) {
            const int64_t row = first + (rows ? rows[s0 + l] : s0 + l);
            const uint64_t s = g->samples ? g->samples[row] : ~(uint64_t)0;
            low[l] = s & 0xffffffffu; last[l] = K(counter3)(g, s);
        }
        if (at_once == 1) {
            uint64_t a[DRAWN_LANES], b[DRAWN_LANES];
            for (int64_t l = 1; l < x->n_blocks; l++) { low[l] = low[0]; last[l] = last[0]; }
            K(philox_keys)(x->key, x->block, low, step, last, x->n_blocks, w);
            for (int64_t k = 0; k < m; k++) a[k] = w[x->word[k]][x->of[k]];
            if (g->kind == D_NORMAL)
                for (int64_t k = 0; k < m; k++) b[k] = w[x->word[k] + 1][x->of[k]];
            K(put_drawn)(g->kind, a, b, m, to + s0 * s_step, e_step);
            continue;
        }
        for (int64_t k = 0, q = 0; q < x->n_blocks; q++) {
            uint64_t key[DRAWN_LANES], block[DRAWN_LANES];
            for (int64_t l = 0; l < here; l++) { key[l] = x->key[q]; block[l] = x->block[q]; }
            K(philox_keys)(key, block, low, step, last, here, w);
            for (; k < m && x->of[k] == q; k++)
                K(put_drawn)(g->kind, w[x->word[k]], w[(x->word[k] + 1) & 3], here,
                             to + k * e_step + s0 * s_step, s_step);
        }
    }
}

/* The draws of a tile; `base` numbers the message at place 0 of axes 1 and 2. */
static void K(drawn)(const view_t *v, REAL *to, int64_t base, int64_t i1, int64_t r, int64_t i2,
                     int64_t c) {
    const drawn_t *g = v->drawn;
    const int64_t n_sources = g->n_sources, row_size = g->n_keys * (n_sources ? n_sources : 1);
    const int of_samples[3] = {0, r > 1 && v->stride[1] == row_size,
                               c > 1 && v->stride[2] == row_size};
    const int is_row = v->stride[2] == 1 && !v->index[2] && n_sources >= 8;
    if (r <= 0 || c <= 0) return;
    if (r > 1 && c > 1 && (is_row || of_samples[1] == of_samples[2])) {
        for (int64_t row = 0; row < r; row++) K(drawn)(v, to + row * c, base, i1 + row, 1, i2, c);
        return;
    }
    if (is_row && r == 1) {
        base += K(place)(v, 1, i1) + i2;
        for (int64_t j = 0, n; j < c; j += n) {
            const int64_t key = (base + j) / n_sources, source = (base + j) % n_sources;
            n = n_sources - source < c - j ? n_sources - source : c - j;
            K(drawn_row)(g, key / g->n_keys, key % g->n_keys, g->sources[source], n, to + j);
        }
        return;
    }
    const int64_t n_places[3] = {1, r, c}, from[3] = {0, i1, i2}, apart[3] = {0, c, 1};
    int64_t at = base;                          /* the first message; its row is of samples[row] */
    int edges = 0, samples = 0;                 /* their axes; 0: there is one */
    for (int axis = 1; axis < 3; axis++)
        if (of_samples[axis]) samples = axis;
        else {
            if (n_places[axis] > 1) edges = axis;
            if (n_places[axis] == 1 || !v->index[axis]) at += K(place)(v, axis, from[axis]);
        }
    const int64_t row = at / row_size, edge = at % row_size;
    const int64_t step = edges ? v->stride[edges] : 0;
    const int32_t *places = edges && v->index[edges] ? v->index[edges] + from[edges] : NULL;
    const int32_t *rows = samples && v->index[samples] ? v->index[samples] + from[samples] : NULL;
    if (step && !places && edge + (n_places[edges] - 1) * step >= row_size) {
        /* The axis is fused with that of samples: each row of messages for itself. */
        int64_t n = (row_size - edge + step - 1) / step;
        for (int64_t j = 0; j < n_places[edges]; j += n, n = row_size / step) {
            if (n > n_places[edges] - j) n = n_places[edges] - j;
            if (edges == 1) K(drawn)(v, to + j * c, base, i1 + j, n, i2, c);
            else for (int64_t i = 0; i < r; i++)
                K(drawn)(v, to + i * c + j, base, i1 + i, 1, i2 + j, n);
        }
        return;
    }
    const int shift = g->kind == D_NORMAL ? 1 : 2;
    for (int64_t e = 0; e < n_places[edges]; e += DRAWN_LANES) {
        const int64_t m = n_places[edges] - e < DRAWN_LANES ? n_places[edges] - e : DRAWN_LANES;
        K(blocks_t) x;
        uint64_t key = 0, block = ~(uint64_t)0; /* which no block is */
        int64_t n_blocks = 0;
        for (int64_t k = 0; k < m; k++) {
            const int64_t its = edge + step * (places ? places[e + k] : e + k);
            const uint32_t *words = g->keys + 2 * (n_sources ? its / n_sources : its);
            const uint64_t source = (uint64_t)g->sources[n_sources ? its % n_sources : its];
            const uint64_t its_key = words[0] | (uint64_t)words[1] << 32;
            const uint64_t its_block = source >> shift & 0xffffffffu;
            n_blocks += (its_key != key) | (its_block != block);
            x.key[n_blocks - 1] = key = its_key; x.block[n_blocks - 1] = block = its_block;
            x.of[k] = (uint16_t)(n_blocks - 1);
            x.word[k] = (uint16_t)(shift == 1 ? (source & 1) * 2 : source & 3);
        }
        x.n_blocks = n_blocks;
        K(drawn_edges)(g, &x, m, apart[edges], row + (rows ? 0 : from[samples]), rows,
                       n_places[samples], apart[samples], to + e * apart[edges]);
    }
}
