/* The loops for any processor, tried without Python: prints what is wrong, and how much was tried. */
#include "plain.c"
#include "sum.h"

#include <stdio.h>

static int n_tried, n_wrong;

static void expect(const char *what, double at, double found, double wanted, double allowed) {
    n_tried++;
    double scale = fabs(wanted) > 1e-30 ? fabs(wanted) : 1e-30;
    if (fabs(found - wanted) <= allowed * scale) return;
    n_wrong++;
    printf("%s(%.17g) is %.17g, not %.17g\n", what, at, found, wanted);
}

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

#define TRY(name, x)                                                     \
    expect(#name " of double", x, name##_f64(x), name(x), 4 * 2.3e-16);  \
    expect(#name " of float", x, name##_f32((float)(x)), name((double)(float)(x)), 4 * 1.2e-7)

/* Salmon et al. 2011: Philox 4x32-10, counter 0 and key 0; and all bits set. */
static void try_philox(void) {
    static const uint32_t wanted[2][4] = {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
                                          {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}};
    for (int full = 0; full < 2; full++) {
        const uint32_t bits = full ? 0xffffffffu : 0, key[2] = {bits, bits};
        uint64_t w[4][16];
        for (int k = 0; k < 4; k++)
            for (int l = 0; l < 16; l++) w[k][l] = bits;
        philox_f32_l0(key, w);
        for (int k = 0; k < 4; k++)
            for (int l = 0; l < 16; l++) expect("philox", l, (uint32_t)w[k][l], wanted[full][k], 0);
    }
}

int main(void) {
    for (int i = -400; i <= 400; i++) {
        const double x = i * 0.0213 + 1e-3;
        TRY(exp, x);
        TRY(tanh, x);
        TRY(sigmoid, x);
        TRY(softplus, x);
        TRY(expm1, x);
        TRY(atan, x);
        TRY(erf, x);
        if (x > 0) {
            TRY(log, x);
            TRY(log1p, x);
        }
        const double y = 1.7 - 0.3 * x;
        expect("atan2 of double", x, atan2_f64(y, x), atan2(y, x), 4 * 2.3e-16);
    }
    try_philox();
    horn_make_keys();
    unsigned char bytes[5000];
    for (int i = 0; i < 5000; i++) bytes[i] = (unsigned char)(i * 7 + i / 256);
    printf("sum %016llx\n", (unsigned long long)horn_sum(3, bytes, sizeof bytes, 0));
    printf("%d tried, %d wrong\n", n_tried, n_wrong);
    return n_wrong != 0;
}
