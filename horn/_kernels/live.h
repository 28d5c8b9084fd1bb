/* A product with the weights of live neurons, read where they lie, for AVX-512 and thin batches.
 *
 *     c = a w[rows, cols]' + beta c       forward: neurons are rows of w, messages its columns
 *     c = a w[rows, cols]  + beta c       backward: the other way round
 *
 * A BLAS needs the live weights side by side, and then packs that copy once more. Here they are
 * packed once, into panels of 32 neurons that stay in the cache while the batch, 12 samples at a
 * time, runs over them: the gather costs no pass of its own. After thin.h, whose tiles it uses.
 */
/* Which of the 16 columns from 16 * at are live and in [first, last]. */
static inline uint32_t live_mask(const live_weights_t *l, int32_t at, int32_t first, int32_t last) {
    uint32_t m = l->cols ? l->bits[at] : 0xffff;
    if (at == first >> 4) m &= 0xffffu << (first & 15);
    if (at == last >> 4) m &= 0xffffu >> (15 - (last & 15));
    return m & 0xffffu;
}

/* to[(kk - k0) * 32 + c] = w[rows[c0 + c], cols[kk]] for kk in [k0, k1). Beyond cn the numbers are
 * arbitrary: they end in sums that are not read. */
static void live_pack_rows(const live_weights_t *l, int64_t c0, int64_t cn, int64_t k0, int64_t k1,
                           float *to) {
    const int32_t first = l->cols ? l->cols[k0] : (int32_t)k0;
    const int32_t last = l->cols ? l->cols[k1 - 1] : (int32_t)(k1 - 1);
    for (int half = 0; half < 32 && half < cn; half += 16) {
        const float *row[16];
        float *out = to + half;
        for (int i = 0; i < 16; i++) {
            const int64_t c = c0 + (half + i < cn ? half + i : cn - 1);
            row[i] = l->w + (l->rows ? l->rows[c] : c) * l->ldw;
        }
        for (int32_t at = first >> 4; at <= last >> 4; at++) {
            const uint32_t m = live_mask(l, at, first, last);
            float block[16 * 16] __attribute__((aligned(64)));
            __m512 r[16], t[16];
            if (!m) continue;
            for (int i = 0; i < 16; i++) {
                const float *p = row[i] + 16 * at;
                _mm_prefetch((const char *)(p + 64), _MM_HINT_T0);
                r[i] = _mm512_maskz_loadu_ps((__mmask16)m, p);
            }
            transpose16_of(r, t);
            if (m == 0xffff) {
                for (int i = 0; i < 16; i++) _mm512_storeu_ps(out + 32 * i, r[i]);
                out += 16 * 32;
                continue;
            }
            for (int i = 0; i < 16; i++) _mm512_store_ps(block + 16 * i, r[i]);
            for (uint32_t rest = m; rest; rest &= rest - 1, out += 32)
                _mm512_storeu_ps(out, _mm512_load_ps(block + 16 * __builtin_ctz(rest)));
        }
    }
}

/* to[(kk - k0) * 32 + c] = w[rows[kk], cols[c0 + c]] for kk in [k0, k1); to has room for 16 more. */
static void live_pack_cols(const live_weights_t *l, int64_t c0, int64_t cn, int64_t k0, int64_t k1,
                           float *to) {
    const int32_t first = l->cols ? l->cols[c0] : (int32_t)c0;
    const int32_t last = l->cols ? l->cols[c0 + cn - 1] : (int32_t)(c0 + cn - 1);
    for (int64_t kk = k0; kk < k1; kk++, to += 32) {
        const float *row = l->w + (l->rows ? l->rows[kk] : kk) * l->ldw;
        const int64_t next = kk + 12 < k1 ? kk + 12 : k1 - 1;
        const float *ahead = l->w + (l->rows ? l->rows[next] : next) * l->ldw;
        float *out = to;
        for (int32_t at = first >> 4; at <= last >> 4; at++) {
            const uint32_t m = live_mask(l, at, first, last);
            const __m512 v = _mm512_maskz_loadu_ps((__mmask16)m, row + 16 * at);
            _mm_prefetch((const char *)(ahead + 16 * at), _MM_HINT_T0);
            _mm512_storeu_ps(out, _mm512_maskz_compress_ps((__mmask16)m, v));
            out += __builtin_popcount(m);
        }
    }
}

/* mr samples by 16 * half neurons: sums, 32 apart, begin at zero or continue those stored. */
static inline __attribute__((always_inline)) void
live_tile(const int mr, const int half, int64_t k, const float *a, const float *b, float *sums,
          int begin) {
    __m512 sum[THIN_ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) {
        sum[i][0] = begin ? _mm512_setzero_ps() : _mm512_load_ps(sums + 32 * i);
        if (half == 2) sum[i][1] = begin ? _mm512_setzero_ps() : _mm512_load_ps(sums + 32 * i + 16);
    }
    thin_sums(mr, half, NULL, 0, k, a, b, sum);
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) {
        _mm512_store_ps(sums + 32 * i, sum[i][0]);
        if (half == 2) _mm512_store_ps(sums + 32 * i + 16, sum[i][1]);
    }
}

/* All samples by one panel. */
static void live_panel(int64_t m, int64_t cn, int64_t k, const float *tiles, const float *panel,
                       float *sums, int begin) {
    for (int64_t r = 0; r < m;) {
        const int mr = thin_height(m - r);
        const float *a = tiles + r * k;
        float *to = sums + 32 * r;
        switch (mr + (cn > 16)) {
        case 13: live_tile(12, 2, k, a, panel, to, begin); break;
        case 12: live_tile(12, 1, k, a, panel, to, begin); break;
        case 9: live_tile(8, 2, k, a, panel, to, begin); break;
        case 8: live_tile(8, 1, k, a, panel, to, begin); break;
        case 5: live_tile(4, 2, k, a, panel, to, begin); break;
        case 4: live_tile(4, 1, k, a, panel, to, begin); break;
        default: live_tile(1, 2, k, a, panel, to, begin); break;
        }
        r += mr;
    }
}

/* c[r, j] = sums[r * 32 + j] + beta c[r, j] for j < cn; one of the strides of c is 1. */
static void live_store(int64_t m, int64_t cn, const float *sums, float beta, float *c, int64_t cm,
                       int64_t cj) {
    const __m512 vb = _mm512_set1_ps(beta);
    for (int half = 0; half < cn; half += 16) {
        const int64_t width = cn - half < 16 ? cn - half : 16;
        if (cj == 1) {
            const __mmask16 mask = (__mmask16)((1u << width) - 1);
            for (int64_t r = 0; r < m; r++) {
                float *p = c + r * cm + half;
                __m512 v = _mm512_load_ps(sums + 32 * r + half);
                if (beta != 0) v = _mm512_fmadd_ps(vb, _mm512_maskz_loadu_ps(mask, p), v);
                _mm512_mask_storeu_ps(p, mask, v);
            }
            continue;
        }
        for (int64_t r = 0; r < m; r += 16) {
            const int64_t height = m - r < 16 ? m - r : 16;
            const __mmask16 mask = (__mmask16)((1u << height) - 1);
            __m512 s[16], t[16];
            for (int i = 0; i < 16; i++)
                s[i] = _mm512_load_ps(sums + 32 * (r + (i < height ? i : 0)) + half);
            transpose16_of(s, t);
            for (int64_t j = 0; j < width; j++) {
                float *p = c + (half + j) * cj + r;
                __m512 v = s[j];
                if (beta != 0) v = _mm512_fmadd_ps(vb, _mm512_maskz_loadu_ps(mask, p), v);
                _mm512_mask_storeu_ps(p, mask, v);
            }
        }
    }
}

void live_product(const float *a, int64_t am, int64_t ak, const live_weights_t *l,
                         int backward, float *c, int64_t cm, int64_t cj, int64_t m, int64_t c0,
                         int64_t c1, int64_t k, float beta, char *scratch) {
    float *sums = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    float *tiles = sums + LIVE_SUMS_BYTES / 4, *panel = tiles + THIN_TILES_BYTES / 4;
    const int64_t group = LIVE_SUMS_BYTES / 4 / m / 32 * 32;    /* neurons whose sums have room */
    const int64_t n_blocks = k > 0 ? (k + LIVE_K - 1) / LIVE_K : 1;
    for (int64_t g0 = c0; g0 < c1; g0 += group) {
        const int64_t g1 = g0 + group < c1 ? g0 + group : c1;
        for (int64_t block = 0; block < n_blocks; block++) {
            const int64_t k0 = k * block / n_blocks, k1 = k * (block + 1) / n_blocks, kn = k1 - k0;
            for (int64_t r = 0; r < m;) {
                const int mr = thin_height(m - r);
                pack_rows(a + r * am + k0 * ak, am, ak, kn, mr, tiles + r * kn);
                r += mr;
            }
            for (int64_t j = g0; j < g1; j += 32) {
                const int64_t cn = g1 - j < 32 ? g1 - j : 32;
                float *to = sums + (j - g0) * m;
                if (backward) live_pack_cols(l, j, cn, k0, k1, panel);
                else if (kn > 0) live_pack_rows(l, j, cn, k0, k1, panel);
                live_panel(m, cn, kn, tiles, panel, to, block == 0);
                if (block == n_blocks - 1) live_store(m, cn, to, beta, c + j * cj, cm, cj);
            }
        }
    }
}
