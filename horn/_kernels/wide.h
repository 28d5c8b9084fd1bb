/* The product of two matrices of float32, for one processor level (vectors.h).
 *
 * It is here because the users' libraries do not know their processors: NumPy's OpenBLAS and MKL
 * treat processors with 512-bit vectors that they have no table for, or that another company makes,
 * as processors with 256 bits (docs/notes/0070); and because they pack weights anew at each step of
 * a sequence, and multiply zeros of data (docs/notes/0184). Goto and van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008, with two differences: a panel of b
 * is packed when the first tile needs it, so that a thin batch finds it in the first-level cache,
 * and a sum goes through the messages in the same order whatever m and n are, so that a part of a
 * product has the bits of the whole.
 */
#include <math.h>
#include <string.h>

#include "events.h"

/* The rows of a tile that begins at i. */
static inline int rows_from(int64_t i, int64_t end, int tall) {
    return end - i < tall ? (int)(end - i) : tall;
}

/* The height of tiles, of which the last may have fewer rows. A tile of fewer than LOW_ROWS takes as
 * long as one of LOW_ROWS: each of its few sums waits for the one before. */
static int tall_of(int64_t rows) {
    int tall = TILE_ROWS;
    int64_t least = INT64_MAX;
    for (int height = TILE_ROWS; LEVEL == 1 && height >= LOW_ROWS; height--) {
        const int64_t left = rows % height;
        const int64_t cost = rows - left + (left && left < LOW_ROWS ? LOW_ROWS : left);
        if (cost < least) { least = cost; tall = height; }
    }
    return tall;
}

/* Too few columns for tiles: a vector has rows. Four tiles at a time, as one would wait for each
 * sum. */
static void few_columns(const float *tiles, int tall, int64_t m, int64_t k, const float *panel,
                        float alpha, float beta, float *c, int64_t ldc, int64_t cols) {
    for (int64_t col = 0; col < cols; col++)
        for (int64_t i = 0; i < m; i += 4 * tall) {
            vec_t sum[4];
            const int is_full = m - i >= 4 * tall;
            for (int q = 0; q < 4; q++) sum[q] = MM(setzero_ps)();
            if (is_full)
                for (int64_t kk = 0; kk < k; kk++) {
                    const vec_t b = MM(set1_ps)(panel[kk * PANEL + col]);
                    for (int q = 0; q < 4; q++)
                        sum[q] = MM(fmadd_ps)(load_lanes(
                            lanes(tall, 0), tiles + ((i + q * tall) * k
                                                          + kk * tall)), b, sum[q]);
                }
            for (int q = 0; q < 4 && i + q * tall < m; q++) {
                const int64_t first = i + q * tall;
                const int height = rows_from(first, m, tall);
                const lanes_t mask = lanes(height, 0);
                if (!is_full)
                    for (int64_t kk = 0; kk < k; kk++)
                        sum[q] = MM(fmadd_ps)(
                            load_lanes(mask, tiles + first * k + kk * height),
                            MM(set1_ps)(panel[kk * PANEL + col]), sum[q]);
                float found[LANES];
                MM(storeu_ps)(found, MM(mul_ps)(MM(set1_ps)(alpha), no_sign(sum[q])));
                for (int r = 0; r < height; r++) {
                    float *p = c + (first + r) * ldc + col;
                    *p = beta != 0 ? fmaf(beta, *p, found[r]) : found[r];
                }
            }
        }
}

/* All rows, in tiles of `height` one after the other; the last may have fewer. Contiguous memory is
 * read once, some messages at a time, not once for each tile that has a part of its lines. */
#define SOME_MESSAGES 8
static void pack_tiles(const float *a, int64_t am, int64_t ak, int64_t k, int64_t m, int height,
                       float *to) {
    if (am != 1) {
        for (int64_t i = 0; i < m; i += height)
            pack_rows(a + i * am, am, ak, k, m - i < height ? (int)(m - i) : height, to + i * k);
        return;
    }
    for (int64_t from = 0; from < k; from += SOME_MESSAGES) {
        const int64_t n = k - from < SOME_MESSAGES ? k - from : SOME_MESSAGES;
        for (int64_t i = 0; i < m; i += height) {
            const int rows = m - i < height ? (int)(m - i) : height;
            const lanes_t mask = lanes(rows, 0);
            const float *p = a + i + from * ak;
            float *q = to + i * k + from * rows;
            for (int64_t kk = 0; kk < n; kk++)
                store_lanes(q + kk * rows, mask, load_lanes(mask, p + kk * ak));
        }
    }
}

/* ---- prefetching ---- */
typedef struct {
    const char *at; int64_t pitch, n_lines, rows;
} ahead_t;

/* A part of an operand: lines of 64 bytes along the axis, rows or columns, that is contiguous. */
static ahead_t ahead_of(const float *p, int64_t rs, int64_t cs, int64_t rows, int64_t cols) {
    const int64_t n = cs == 1 ? cols : rows;
    return (ahead_t){(const char *)p, 4 * (cs == 1 ? rs : cs), (4 * n + 63) / 64 + 1,
                     cs == 1 ? rows : cols};
}
static inline void prefetch(ahead_t *f, int64_t lines) {
    for (; f->rows > 0 && lines > 0; f->rows--, f->at += f->pitch, lines -= f->n_lines)
        for (int64_t i = 0; i < f->n_lines; i++) _mm_prefetch(f->at + 64 * i, _MM_HINT_T1);
}

/* n in `parts`, each a multiple of `align` but the last. */
static inline int64_t part_of(int64_t n, int64_t parts, int64_t align) {
    return ((n + parts - 1) / parts + align - 1) / align * align;
}

/* Pays where tiles take longer than that. */
#define ROWS_TO_PREFETCH 48
#define FEW_COLUMNS 2
/* Of panels of b that a tile of rows meets one after the other: they stay in the second-level cache. */
#define ROW_BYTES (128 * 1024)
/* Numbers of an operand that is not in a cache when it is packed. */
#define FAR (2 * 1024 * 1024)

/* A thread's scratch. */
typedef struct { float *panels, *tiles, *turned; events_t events; } room_t;
static room_t room_of(char *scratch) {
    room_t r;
    r.panels = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    r.tiles = r.panels + WIDE_COLS * WIDE_K;
    r.turned = r.tiles + WIDE_ROWS * WIDE_K + 64;
    r.events.row_value = r.turned + WIDE_ROWS * TURNED_COLS;
    r.events.row_at = (int16_t *)(r.events.row_value + WIDE_ROWS * LIST);
    r.events.tile_at = r.events.row_at + WIDE_ROWS * LIST;
    r.events.n_tiles = 0;
    return r;
}

/* The number of columns that rows process together, of n that are left: as many as possible. */
static inline int64_t together(int64_t n) {
    const int64_t most = MOST_VECTORS * LANES, n_times = (n + most - 1) / most;
    return part_of(n, n_times > 0 ? n_times : 1, PANEL);
}

/* Rows i0 to i1 of c, packed, in columns j0 to j1. A tile of rows meets several panels before the
 * next one does, so that what it reads and writes of c lies side by side: a tall c is larger than
 * caches, and the system's pages have 4 KiB. */
static void strips(const float *tiles, int tall, int64_t i0, int64_t i1, int64_t k, const float *b,
                   int64_t bk, int64_t bn, int64_t j0, int64_t j1, float alpha, float beta, float *c,
                   int64_t ldc, float *panels, int has_panels, ahead_t *next, int64_t n_next) {
    const int64_t n_panels = k > 0 ? ROW_BYTES / 4 / PANEL / k : 0;
    const int64_t strip = (n_panels > 0 ? n_panels : 1) * PANEL;
    for (int64_t j = j0; j < j1; j += strip, panels += strip * k) {
        const int64_t to = j + strip < j1 ? j + strip : j1, last = (to - j) % PANEL;
        const int64_t few = last <= FEW_COLUMNS ? last : 0;
        for (int64_t p = j; !has_panels && p < to; p += PANEL)
            pack_cols(b + p * bn, bk, bn, k, to - p < PANEL ? to - p : PANEL, 0,
                      panels + (p - j) * k);
        for (int64_t i = i0; i < i1; i += tall)
            for (int64_t p = j; p < to - few; p += PANEL) {
                prefetch(next, n_next);
                TILES[to - p > LANES][rows_from(i, i1, tall)](
                    k, NULL, tiles + (i - i0) * k, panels + (p - j) * k, alpha, beta,
                    c + i * ldc + p, ldc, to - p);
            }
        if (few)
            few_columns(tiles, tall, i1 - i0, k, panels + (to - j - few) * k, alpha, beta,
                        c + i0 * ldc + to - few, ldc, few);
    }
}

/* Rows of a and columns of b in blocks; zeros of a are skipped if `looks`. */
static void blocks(const float *a, int64_t am, int64_t ak, const float *b, int64_t bk, int64_t bn,
                   float *c, int64_t ldc, int64_t m, int64_t n, int64_t k, float alpha, float beta,
                   int looks, room_t *room) {
    float *tiles = room->tiles;
    events_t *e = &room->events;
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    const int64_t height = part_of(m, (m + WIDE_ROWS - 1) / WIDE_ROWS, TILE_ROWS);
    const int is_whole = height >= m;           /* then no panel is needed twice */
    const int64_t width = is_whole ? n : part_of(n, (n + WIDE_COLS - 1) / WIDE_COLS, PANEL);
    const int has_events = looks && is_mostly_zero(a, am, ak, m, k);
    for (int64_t j0 = 0; j0 < n; j0 += width)
    for (int64_t depth = 0; depth < n_depths; depth++) {
        const int64_t j1 = j0 + width < n ? j0 + width : n;
        const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
        const float keep = depth ? 1.0f : beta;
        const int is_last = depth + 1 == n_depths;
        int has_panels = 0, is_tame = has_events && bn == 1;
        for (int64_t kk = k0; is_tame && kk < k0 + kn; kk++)
            is_tame = is_finite(b + kk * bk + j0, j1 - j0);
        for (int64_t i0 = 0; i0 < m; i0 += height) {
            const int64_t i1 = i0 + height < m ? i0 + height : m;
            const int tall = tall_of(i1 - i0);
            const int64_t n_tiles = (i1 - i0 + tall - 1) / tall;
            const float *rows = a + i0 * am + k0 * ak;
            const int is_by_rows = has_events && (is_tame || bn != 1)
                                   && find_in_rows(e, rows, am, ak, i1 - i0, kn);
            if (is_by_rows && is_tame) {        /* columns of b lie side by side already */
                const int64_t each = together(j1 - j0);
                for (int64_t j = j0; j < j1; j += each)
                    rows_of(e, i1 - i0, b + k0 * bk + j, bk, PANEL, 1, alpha, keep, c + i0 * ldc + j,
                            ldc, j1 - j < each ? j1 - j : each);
                continue;
            }
            if (!is_by_rows) pack_tiles(rows, am, ak, kn, i1 - i0, tall, tiles);
            e->n_tiles = 0;
            if (looks && !is_by_rows) find_in_tiles(e, tiles, tall, i1 - i0, kn);
            ahead_t next = {0}, beside = {0};
            if (i1 < m)
                next = ahead_of(a + i1 * am + k0 * ak, am, ak, m - i1 < height ? m - i1 : height, kn);
            else if (!is_last)
                next = ahead_of(a + (k0 + kn) * ak, am, ak, m < height ? m : height, kn);
            const int64_t n_panels = (j1 - j0 + PANEL - 1) / PANEL;
            const int64_t n_next = next.n_lines * next.rows / (n_tiles * n_panels) + 1;
            if (!is_whole && !looks) {
                strips(tiles, tall, i0, i1, kn, b + k0 * bk, bk, bn, j0, j1, alpha, keep, c, ldc,
                       room->panels, has_panels, &next, n_next);
                has_panels = 1;
                continue;
            }
            const int64_t each = is_by_rows ? together(j1 - j0) : PANEL;
            for (int64_t j = j0; j < j1; j += each) {
                const int64_t cols = j1 - j < each ? j1 - j : each, after = j1 - j - cols;
                float *panel = room->panels + (is_whole ? 0 : (j - j0) * kn);
                for (int64_t p = 0; !has_panels && p < cols; p += PANEL)
                    pack_cols(b + k0 * bk + (j + p) * bn, bk, bn, kn,
                              cols - p < PANEL ? cols - p : PANEL, n * k > FAR, panel + p * kn);
                if (is_by_rows) {
                    if (is_finite(panel, part_of(cols, 1, PANEL) * kn)) {
                        rows_of(e, i1 - i0, panel, PANEL, PANEL * kn, 0, alpha, keep,
                                c + i0 * ldc + j, ldc, cols);
                        continue;
                    }
                    pack_tiles(rows, am, ak, kn, i1 - i0, tall, tiles);
                }
                if (!has_panels && after)
                    beside = ahead_of(b + k0 * bk + (j + cols) * bn, bk, bn, kn,
                                      after < PANEL ? after : PANEL);
                else if (!has_panels && !is_last)
                    beside = ahead_of(b + (k0 + kn) * bk + j0 * bn, bk, bn, kn,
                                      j1 - j0 < PANEL ? j1 - j0 : PANEL);
                const int64_t n_beside = beside.n_lines * beside.rows / n_tiles + 1;
                const int is_some = e->n_tiles && is_finite(panel, PANEL * kn);
                for (int64_t p = 0; p < cols; p += PANEL) {
                    const int64_t wide = cols - p;
                    const float *here = panel + p * kn;
                    if (wide <= FEW_COLUMNS && !is_some) {
                        few_columns(tiles, tall, i1 - i0, kn, here, alpha, keep,
                                    c + i0 * ldc + j + p, ldc, wide);
                        continue;
                    }
                    for (int64_t i = i0, q = 0; i < i1; i += tall, q++) {
                        const int some = is_some && q < e->n_tiles;
                        if (m >= ROWS_TO_PREFETCH) {
                            prefetch(&next, n_next);
                            prefetch(&beside, n_beside);
                        }
                        (some ? SOME : TILES)[wide > LANES][rows_from(i, i1, tall)](
                            some ? e->n_some[q] : kn, some ? e->tile_at + q * LIST : NULL,
                            tiles + (i - i0) * kn, here, alpha, keep, c + i * ldc + j + p, ldc, wide);
                    }
                }
            }
            has_panels = 1;
        }
    }
}

/* ---- one row: b is read once, where it lies ---- */
#define ROWS_AT_ONCE 16         /* of an operand whose rows are read side by side */
#define COLS_AT_ONCE 512        /* whose sums stay in the first-level cache */

/* c = keep c + alpha sums for cols columns; without keep what c held does not matter. */
static void put_row(const float *sums, int64_t cols, float alpha, float keep, float *c) {
    const vec_t va = MM(set1_ps)(alpha), vk = MM(set1_ps)(keep);
    for (int64_t j = 0; j < cols; j += LANES) {
        const lanes_t mask = lanes(cols - j, 0);
        vec_t found = MM(mul_ps)(va, no_sign(MM(load_ps)(sums + j)));
        if (keep != 0) found = MM(fmadd_ps)(vk, load_lanes(mask, c + j), found);
        store_lanes(c + j, mask, found);
    }
}

/* Sums of `cols` columns; rows of b lie side by side. */
static void sums_of_rows(const float *a, int64_t ak, const float *b, int64_t bk, int64_t k,
                         int64_t cols, float *sums) {
    for (int64_t j = 0; j < cols; j += LANES) MM(store_ps)(sums + j, MM(setzero_ps)());
    for (int64_t kk = 0; kk < k; kk += 4) {
        const int rows = k - kk < 4 ? (int)(k - kk) : 4;
        const float *row = b + kk * bk;
        vec_t q[4];
        for (int i = 0; i < 4; i++) q[i] = MM(set1_ps)(a[(kk + (i < rows ? i : 0)) * ak]);
        int64_t j = 0;
        if (rows == 4)
            for (; j + LANES <= cols; j += LANES) {
                vec_t sum = MM(load_ps)(sums + j);
                for (int i = 0; i < 4; i++)
                    sum = MM(fmadd_ps)(q[i], MM(loadu_ps)(row + i * bk + j), sum);
                MM(store_ps)(sums + j, sum);
            }
        for (; j < cols; j += LANES) {
            const lanes_t mask = lanes(cols - j, 0);
            vec_t sum = MM(load_ps)(sums + j);
            for (int i = 0; i < rows; i++)
                sum = MM(fmadd_ps)(q[i], load_lanes(mask, row + i * bk + j), sum);
            MM(store_ps)(sums + j, sum);
        }
    }
}

/* Sums of at most ROWS_AT_ONCE columns, each of which lies side by side. */
static void sums_of_columns(const float *a, int64_t ak, const float *b, int64_t bn, int64_t k,
                            int64_t cols, float *sums) {
    vec_t sum[ROWS_AT_ONCE / LANES];
    const float *col[ROWS_AT_ONCE];
    for (int i = 0; i < ROWS_AT_ONCE; i++) col[i] = b + (i < cols ? i : cols - 1) * bn;
    for (int g = 0; g < ROWS_AT_ONCE / LANES; g++) sum[g] = MM(setzero_ps)();
    for (int64_t kk = 0; kk < k; kk += LANES) {
        const int here = k - kk < LANES ? (int)(k - kk) : LANES;
        const lanes_t mask = lanes(here, 0);
        for (int g = 0; g < ROWS_AT_ONCE / LANES; g++) {
            vec_t r[LANES], t[LANES];
            for (int i = 0; i < LANES; i++) {
                const float *p = col[g * LANES + i] + kk;
                _mm_prefetch((const char *)(p + FAR_AHEAD), _MM_HINT_T0);
                r[i] = here == LANES ? MM(loadu_ps)(p) : load_lanes(mask, p);
            }
            transpose_of(r, t);
            if (here == LANES)
                for (int i = 0; i < LANES; i++)
                    sum[g] = MM(fmadd_ps)(MM(set1_ps)(a[(kk + i) * ak]), r[i], sum[g]);
            else
                for (int i = 0; i < here; i++)
                    sum[g] = MM(fmadd_ps)(MM(set1_ps)(a[(kk + i) * ak]), r[i], sum[g]);
        }
    }
    for (int g = 0; g < ROWS_AT_ONCE / LANES; g++) MM(store_ps)(sums + g * LANES, sum[g]);
}

static void one_row(const float *a, int64_t ak, const float *b, int64_t bk, int64_t bn, float *c,
                    int64_t n, int64_t k, float alpha, float beta) {
    float sums[COLS_AT_ONCE] __attribute__((aligned(64)));
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    const int64_t most = bn == 1 ? COLS_AT_ONCE : ROWS_AT_ONCE;
    for (int64_t j = 0; j < n; j += most) {
        const int64_t cols = n - j < most ? n - j : most;
        for (int64_t depth = 0; depth < n_depths; depth++) {
            const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
            const float *from = b + k0 * bk + j * bn;
            if (bn == 1) sums_of_rows(a + k0 * ak, ak, from, bk, kn, cols, sums);
            else sums_of_columns(a + k0 * ak, ak, from, bn, kn, cols, sums);
            put_row(sums, cols, alpha, depth ? 1.0f : beta, c + j);
        }
    }
}

static void wide_product(const float *a, int64_t am, int64_t ak, const float *b, int64_t bk,
                         int64_t bn, float *c, int64_t ldc, int64_t m, int64_t n, int64_t k,
                         float alpha, float beta, int zeros, char *scratch) {
    if (m == 1) {
        one_row(a, ak, b, bk, bn, c, n, k, alpha, beta);
        return;
    }
    room_t room = room_of(scratch);
    if (zeros != ZEROS_B || !is_mostly_zero(b, bn, bk, n, k)) {
        blocks(a, am, ak, b, bk, bn, c, ldc, m, n, k, alpha, beta, zeros == ZEROS_A, &room);
        return;
    }
    /* Its columns are rows of the transposed product, which is computed a part at a time. */
    for (int64_t j = 0; j < n; j += WIDE_ROWS)
        for (int64_t i = 0; i < m; i += TURNED_COLS) {
            const int64_t rows = m - i < TURNED_COLS ? m - i : TURNED_COLS;
            const int64_t cols = n - j < WIDE_ROWS ? n - j : WIDE_ROWS;
            float *part = c + i * ldc + j;
            if (beta != 0) turn(part, ldc, rows, cols, room.turned, TURNED_COLS);
            blocks(b + j * bn, bn, bk, a + i * am, ak, am, room.turned, TURNED_COLS, cols, rows, k,
                   alpha, beta, 1, &room);
            turn(room.turned, TURNED_COLS, cols, rows, part, ldc);
        }
}

/* The number before the panels tells whether all of b is finite. */
static void wide_pack(const float *b, int64_t bk, int64_t bn, int64_t n, int64_t k, float *panels) {
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    float *const first = panels;
    for (int64_t depth = 0; depth < n_depths; depth++) {
        const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
        for (int64_t j = 0; j < n; j += PANEL, panels += PANEL * kn)
            pack_cols(b + k0 * bk + j * bn, bk, bn, kn, n - j < PANEL ? n - j : PANEL, 0, panels);
    }
    first[-1] = is_finite(first, panels - first);
}

static void wide_packed(const float *a, int64_t am, int64_t ak, int64_t m, int64_t k,
                        const wide_part_t *parts, int n_parts, int64_t p0, int64_t p1, int zeros,
                        char *scratch) {
    room_t room = room_of(scratch);
    const events_t *e = &room.events;
    const int64_t n_depths = k > 0 ? (k + WIDE_K - 1) / WIDE_K : 1;
    const int64_t height = part_of(m, (m + WIDE_ROWS - 1) / WIDE_ROWS, TILE_ROWS);
    int looks = zeros == ZEROS_A && is_mostly_zero(a, am, ak, m, k);
    for (int part = 0; part < n_parts; part++) looks &= parts[part].panels[-1] != 0;
    for (int64_t depth = 0; depth < n_depths; depth++) {
        const int64_t k0 = k * depth / n_depths, kn = k * (depth + 1) / n_depths - k0;
        for (int64_t i0 = 0; i0 < m; i0 += height) {
            const int64_t i1 = i0 + height < m ? i0 + height : m;
            const float *rows = a + i0 * am + k0 * ak;
            const int tall = tall_of(i1 - i0);
            const int is_by_rows = looks
                                   && find_in_rows(&room.events, rows, am, ak, i1 - i0, kn);
            int64_t before = 0;
            if (!is_by_rows) pack_tiles(rows, am, ak, kn, i1 - i0, tall, room.tiles);
            for (int part = 0; part < n_parts; part++) {
                const wide_part_t *w = &parts[part];
                const int64_t n_panels = (w->n + PANEL - 1) / PANEL;
                const int64_t lo = p0 > before ? p0 - before : 0;
                const int64_t hi = p1 - before < n_panels ? p1 - before : n_panels;
                const float *panels = w->panels + k0 * n_panels * PANEL;
                const float keep = depth ? 1.0f : w->beta;
                const int64_t each = is_by_rows ? together((hi - lo) * PANEL) / PANEL : 1;
                for (int64_t p = lo; p < hi; p += each) {
                    const int64_t j = p * PANEL, here = (hi - p < each ? hi - p : each) * PANEL;
                    const int64_t cols = w->n - j < here ? w->n - j : here;
                    float *c = w->c + j;
                    if (is_by_rows)
                        rows_of(e, i1 - i0, panels + j * kn, PANEL, PANEL * kn, 0, w->alpha, keep,
                                c + i0 * w->ldc, w->ldc, cols);
                    else
                        for (int64_t i = i0; i < i1; i += tall)
                            TILES[cols > LANES][rows_from(i, i1, tall)](
                                kn, NULL, room.tiles + (i - i0) * kn, panels + j * kn, w->alpha,
                                keep, c + i * w->ldc, w->ldc, cols);
                }
                before += n_panels;
            }
        }
    }
}

const wide_t WIDE = {PANEL, wide_product, wide_pack, wide_packed};
