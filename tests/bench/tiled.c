/* Training steps of neurons that are no matrix product, as one writes them in C: 4 x 4 outputs in
 * registers, the sum inside, gradients of 4 neurons by a vector's width of weights.
 *
 * bench_loops.py compiles it with -O3 -march=native -ffast-math -fopenmp. The network has n_in
 * inputs, n_out neurons of one kind, 10 softmax neurons with cross-entropy; no biases; SGD with
 * momentum. Threads divide the tiles.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CLASSES 10
#define LANES 32 /* of a gradient's tile */

enum { MANHATTAN, LOG_SUM_EXP, LARGEST, DENDRITE, ATTENTION, NOISY_OR, P_NORM, KURAMOTO,
       DROP_CONNECT };

typedef struct {
    int kind, batch, n_in, n_out, threads;
    uint32_t site, iteration;   /* of draws; samples are numbered from iteration * batch */
    const uint32_t *key;        /* two for each neuron */
    float *w, *v, *w2, *v2;     /* weights and velocities: (n_out, n_in), (CLASSES, n_out) */
    float *p;                   /* (n_out, n_in): of noisy-or, the probability of each synapse */
    float *z, *top, *y, *g, *h; /* (batch, n_out) */
    int *at;                    /* (batch, n_out) */
    float *delta, *gw2;         /* (batch, CLASSES), (CLASSES, n_out) */
} net_t;

/* Loops that the threads divide. */
#define SHARED _Pragma("omp parallel for num_threads(n->threads) schedule(static)")
#define SHARED_2 _Pragma("omp parallel for collapse(2) num_threads(n->threads) schedule(static)")

/* s0 (and s1) of TERM over i for 4 samples and 4 neurons; what is left over one by one. */
#define TILES(P, Q) \
    SHARED_2 \
    for (int b = 0; b < n->batch - P + 1; b += P) \
        for (int o = 0; o < n->n_out - Q + 1; o += Q)
#define FORWARD(NAME, START, COMBINE, TERM) \
static void NAME(const net_t *n, const float *x, const float *w, float *out) { \
    const int I = n->n_in, O = n->n_out; \
    TILES(4, 4) { \
        float s[4][4], m[4][4]; \
        for (int p = 0; p < 4; p++) for (int q = 0; q < 4; q++) { \
            s[p][q] = START; m[p][q] = n->top[(b + p) * O + o + q]; } \
        const float *x0 = x + b * I, *x1 = x0 + I, *x2 = x1 + I, *x3 = x2 + I; \
        const float *w0 = w + o * I, *w1 = w0 + I, *w2 = w1 + I, *w3 = w2 + I; \
        for (int i = 0; i < I; i++) { \
            const float xs[4] = {x0[i], x1[i], x2[i], x3[i]}; \
            const float ws[4] = {w0[i], w1[i], w2[i], w3[i]}; \
            _Pragma("GCC unroll 4") \
            for (int p = 0; p < 4; p++) \
                _Pragma("GCC unroll 4") \
                for (int q = 0; q < 4; q++) { \
                    const float X = xs[p], W = ws[q], M = m[p][q], S = s[p][q]; \
                    (void)M; s[p][q] = COMBINE(S, (TERM)); } \
        } \
        for (int p = 0; p < 4; p++) for (int q = 0; q < 4; q++) \
            out[(b + p) * O + o + q] = s[p][q]; \
    } \
}
#define ADD(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))
#define MOST(a, b) ((a) > (b) ? (a) : (b))

FORWARD(manhattan, 0, ADD, fabsf(X - W))
FORWARD(largest, -INFINITY, MOST, X * W)
FORWARD(sum_exp, 0, ADD, expf(X * W - M))
FORWARD(sum_exp_x, 0, ADD, expf(X * W - M) * X)
FORWARD(dendrite, 0, ADD, tanhf(X * W))
FORWARD(noisy_or, 1, TIMES, 1 - 0.01f * X * W)
FORWARD(p_norm, 0, ADD, fabsf(X * W) * (X * W) * (X * W))
FORWARD(kuramoto, 0, ADD, sinf(X - W))

/* gradient of 4 neurons at LANES weights, then the update. G, H: of sample and neuron. */
#define BACKWARD(NAME, TERM, AFTER) \
static void NAME(net_t *n, const float *x, float rate, float mu) { \
    const int I = n->n_in, O = n->n_out; \
    SHARED \
    for (int o = 0; o < O - 3; o += 4) \
        for (int i = 0; i < I; i += LANES) { \
            float acc[4][LANES] = {{0}}, ws[4][LANES] = {{0}}; \
            const int c = I - i < LANES ? I - i : LANES; \
            const float *from = n->kind == NOISY_OR ? n->p : n->w; \
            for (int q = 0; q < 4; q++) \
                memcpy(ws[q], from + (o + q) * I + i, c * sizeof(float)); \
            if (c == LANES) \
                for (int b = 0; b < n->batch; b++) { \
                    const float *xs = x + b * I + i; \
                    for (int q = 0; q < 4; q++) { \
                        const int k = b * O + o + q; \
                        const float G = n->g[k], H = n->h[k], M = n->top[k]; (void)H; (void)M; \
                        for (int l = 0; l < LANES; l++) { \
                            const float X = xs[l], W = ws[q][l]; (void)W; acc[q][l] += (TERM); } \
                    } \
                } \
            else \
                for (int b = 0; b < n->batch; b++) { \
                    const float *xs = x + b * I + i; \
                    for (int q = 0; q < 4; q++) { \
                        const int k = b * O + o + q; \
                        const float G = n->g[k], H = n->h[k], M = n->top[k]; (void)H; (void)M; \
                        for (int l = 0; l < c; l++) { \
                            const float X = xs[l], W = ws[q][l]; (void)W; acc[q][l] += (TERM); } \
                    } \
                } \
            for (int q = 0; q < 4; q++) { \
                float *w = n->w + (o + q) * I + i, *v = n->v + (o + q) * I + i; \
                for (int l = 0; l < c; l++) { \
                    const float W = ws[q][l], A = acc[q][l]; (void)W; \
                    v[l] = mu * v[l] - rate * (AFTER); w[l] += v[l]; } \
            } \
        } \
}
BACKWARD(back_manhattan, G * copysignf(1.0f, W - X), A)
BACKWARD(back_exp, G * X * expf(X * W - M), A)
BACKWARD(back_dendrite, G * X * (1 - tanhf(X * W) * tanhf(X * W)), A)
BACKWARD(back_attention, G * X * (X - H) * expf(X * W - M), A)
BACKWARD(back_noisy_or, G * X / (1 - 0.01f * X * W), A * W * (1 - W))
BACKWARD(back_p_norm, G * X * (X * W) * fabsf(X * W), A)
BACKWARD(back_kuramoto, -G * cosf(X - W), A)

static void back_largest(net_t *n, const float *x, float rate, float mu, float *gw) {
    const int I = n->n_in, O = n->n_out;
    SHARED
    for (int o = 0; o < O; o++) {
        memset(gw + o * I, 0, sizeof(float) * I);
        for (int b = 0; b < n->batch; b++) {
            const int at = n->at[b * O + o];
            gw[o * I + at] += n->g[b * O + o] * x[b * I + at];
        }
        for (int k = o * I; k < (o + 1) * I; k++) {
            n->v[k] = mu * n->v[k] - rate * gw[k]; n->w[k] += n->v[k]; }
    }
}

/* Where the largest is: 64 products at a time, then which of them. */
static void largest_at(net_t *n, const float *x) {
    const int I = n->n_in, O = n->n_out;
    SHARED_2
    for (int b = 0; b < n->batch; b++)
        for (int o = 0; o < O; o++) {
            const float *xs = x + b * I, *ws = n->w + o * I, top = n->top[b * O + o];
            int at = 0;
            for (; at + 64 <= I; at += 64) {
                int found = 0;
                for (int i = 0; i < 64; i++) found |= xs[at + i] * ws[at + i] == top;
                if (found) break;
            }
            while (at + 1 < I && xs[at] * ws[at] != top) at++;
            n->at[b * O + o] = at;
        }
}

/* ---- DropConnect: a draw per message ---- */
#define BLOCKS 16 /* of four draws, side by side */

/* Philox4x32-10 (Salmon et al. 2011) of counters (block + 0..., sample, iteration, site): 4 * BLOCKS
 * messages of a neuron, whether they are lost. Backward draws them again. */
static inline void kept(const net_t *n, int o, int block, int b, float *keep) {
    const uint32_t k0 = n->key[2 * o], k1 = n->key[2 * o + 1], step = n->iteration, site = n->site << 16;
    const uint64_t sample = (uint64_t)step * n->batch + b;
    for (int l = 0; l < BLOCKS; l++) {
        uint64_t c0 = (uint32_t)(block + l), c1 = (uint32_t)sample, c2 = step, c3 = site ^ (sample >> 32);
        uint32_t q0 = k0, q1 = k1;
        _Pragma("GCC unroll 10")
        for (int round = 0; round < 10; round++, q0 += 0x9E3779B9u, q1 += 0xBB67AE85u) {
            const uint64_t low = (c0 & 0xffffffffu) * 0xD2511F53u, high = (c2 & 0xffffffffu) * 0xCD9E8D57u;
            c0 = (high >> 32) ^ c1 ^ q0; c1 = high;
            c2 = (low >> 32) ^ c3 ^ q1; c3 = low;
        }
        keep[4 * l] = (uint32_t)c0 < 0x80000000u; keep[4 * l + 1] = (uint32_t)c1 < 0x80000000u;
        keep[4 * l + 2] = (uint32_t)c2 < 0x80000000u; keep[4 * l + 3] = (uint32_t)c3 < 0x80000000u;
    }
}

static void drop_connect(const net_t *n, const float *x) {
    const int I = n->n_in, O = n->n_out;
    SHARED_2
    for (int b = 0; b < n->batch; b++)
        for (int o = 0; o < O; o++) {
            const float *xs = x + b * I, *ws = n->w + o * I;
            float keep[4 * BLOCKS], s = 0;
            for (int i = 0; i < I; i += 4 * BLOCKS) {
                const int c = I - i < 4 * BLOCKS ? I - i : 4 * BLOCKS;
                kept(n, o, i / 4, b, keep);
                for (int l = 0; l < c; l++) s += keep[l] * xs[i + l] * ws[i + l];
            }
            n->z[b * O + o] = s;
        }
}

static void back_drop_connect(net_t *n, const float *x, float rate, float mu) {
    const int I = n->n_in, O = n->n_out;
    SHARED
    for (int o = 0; o < O; o++)
        for (int i = 0; i < I; i += 4 * BLOCKS) {
            const int c = I - i < 4 * BLOCKS ? I - i : 4 * BLOCKS;
            float acc[4 * BLOCKS] = {0}, keep[4 * BLOCKS];
            for (int b = 0; b < n->batch; b++) {
                const float *xs = x + b * I + i, g = n->g[b * O + o];
                kept(n, o, i / 4, b, keep);
                for (int l = 0; l < c; l++) acc[l] += g * keep[l] * xs[l];
            }
            float *w = n->w + o * I + i, *v = n->v + o * I + i;
            for (int l = 0; l < c; l++) { v[l] = mu * v[l] - rate * acc[l]; w[l] += v[l]; }
        }
}

/* One step; the mean loss. gw: room of (n_out, n_in). */
float step(net_t *n, const float *x, const int *label, float rate, float mu, float *gw) {
    const int B = n->batch, O = n->n_out, I = n->n_in, kind = n->kind;
    const float per = 1.0f / B;
    float loss = 0;
    if (kind == LARGEST || kind == LOG_SUM_EXP || kind == ATTENTION) {
        largest(n, x, n->w, n->z);
        memcpy(n->top, n->z, sizeof(float) * B * O);
    }
    if (kind == MANHATTAN) manhattan(n, x, n->w, n->z);
    if (kind == LOG_SUM_EXP || kind == ATTENTION) sum_exp(n, x, n->w, n->z);
    if (kind == ATTENTION) sum_exp_x(n, x, n->w, n->h);
    if (kind == DENDRITE) dendrite(n, x, n->w, n->z);
    if (kind == NOISY_OR) {
        SHARED
        for (int k = 0; k < O * I; k++) n->p[k] = 1 / (1 + expf(-n->w[k]));
        noisy_or(n, x, n->p, n->z);
    }
    if (kind == P_NORM) p_norm(n, x, n->w, n->z);
    if (kind == KURAMOTO) kuramoto(n, x, n->w, n->z);
    if (kind == DROP_CONNECT) drop_connect(n, x);
    SHARED
    for (int k = 0; k < B * O; k++) {
        const float z = n->z[k];
        switch (kind) {
        case MANHATTAN: n->y[k] = expf(-0.005f * z); break;
        case LOG_SUM_EXP: n->y[k] = tanhf(n->top[k] + logf(z)); break;
        case ATTENTION: n->h[k] /= z; n->y[k] = tanhf(n->h[k]); break;
        case NOISY_OR: n->y[k] = 1 - z; break;
        case P_NORM: n->y[k] = tanhf(cbrtf(1e-6f + z)); break;
        case KURAMOTO: n->y[k] = tanhf(z / I); break;
        default: n->y[k] = tanhf(z);
        }
    }
    for (int b = 0; b < B; b++) {
        float a[CLASSES], top = -INFINITY, total = 0;
        for (int c = 0; c < CLASSES; c++) {
            a[c] = 0;
            for (int o = 0; o < O; o++) a[c] += n->y[b * O + o] * n->w2[c * O + o];
            if (a[c] > top) top = a[c];
        }
        for (int c = 0; c < CLASSES; c++) total += expf(a[c] - top);
        loss += logf(total) + top - a[label[b]];
        for (int c = 0; c < CLASSES; c++)
            n->delta[b * CLASSES + c] = per * (expf(a[c] - top) / total - (c == label[b]));
    }
    memset(n->gw2, 0, sizeof(float) * CLASSES * O);
    memset(n->g, 0, sizeof(float) * B * O);
    for (int b = 0; b < B; b++)
        for (int c = 0; c < CLASSES; c++) {
            const float d = n->delta[b * CLASSES + c];
            for (int o = 0; o < O; o++) {
                n->g[b * O + o] += d * n->w2[c * O + o];
                n->gw2[c * O + o] += d * n->y[b * O + o];
            }
        }
    for (int k = 0; k < CLASSES * O; k++) {
        n->v2[k] = mu * n->v2[k] - rate * n->gw2[k]; n->w2[k] += n->v2[k]; }
    SHARED
    for (int k = 0; k < B * O; k++) {
        const float y = n->y[k], z = n->z[k];
        switch (kind) {
        case MANHATTAN: n->g[k] *= -0.005f * y; break;
        case LOG_SUM_EXP: case ATTENTION: n->g[k] *= (1 - y * y) / z; break;
        case NOISY_OR: n->g[k] *= 0.01f * z; break;
        case P_NORM: n->g[k] *= (1 - y * y) * powf(1e-6f + z, -2.0f / 3); break;
        case KURAMOTO: n->g[k] *= (1 - y * y) / I; break;
        default: n->g[k] *= 1 - y * y;
        }
    }
    switch (kind) {
    case MANHATTAN: back_manhattan(n, x, rate, mu); break;
    case LOG_SUM_EXP: back_exp(n, x, rate, mu); break;
    case LARGEST: largest_at(n, x); back_largest(n, x, rate, mu, gw); break;
    case DENDRITE: back_dendrite(n, x, rate, mu); break;
    case ATTENTION: back_attention(n, x, rate, mu); break;
    case NOISY_OR: back_noisy_or(n, x, rate, mu); break;
    case P_NORM: back_p_norm(n, x, rate, mu); break;
    case KURAMOTO: back_kuramoto(n, x, rate, mu); break;
    case DROP_CONNECT: back_drop_connect(n, x, rate, mu); break;
    }
    n->iteration++;
    return loss * per;
}
