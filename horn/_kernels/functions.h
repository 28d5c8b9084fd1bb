/* Functions of one number, of both dtypes, as arithmetic without branches: a loop over them becomes
 * vectors at each processor level. Included once per level (level.h).
 *
 * Errors in units of the last place, at most, by tests/kernels/test_functions.py:
 *
 *             exp  log  log1p  expm1  tanh  sigmoid  softplus  sin  cos  erf  erfc  atan  atan2  pow
 *   float      2    1     2      2     3       3        2       2    2    3     3     2     2     1
 *   double     2    1     2      3     3       3        2       3    3    2     4     3     2     2
 *
 * A polynomial is the interpolation of its function at Chebyshev nodes, computed with 60 digits by
 * tests/kernels/fit_functions.py; exp and log of float are those of Cephes and fdlibm; from AVX2 on
 * exp of floats has fewer terms and a table (lanes.h), and is 1 unit elsewhere.
 * sin, cos, pow and fmod (which is exact) hold where SIN_IN_*, POW_IN_* and FMOD_IN_* are true;
 * beyond, strips.h asks libm.
 */
#ifndef HORN_FUNCTIONS_H
#define HORN_FUNCTIONS_H
#include <math.h>
#include <stdint.h>
#include <string.h>

static const double SIN_F64[] = {
    1.5918115263265974e-10, -2.505113165023518e-08, 2.7557316101617874e-06,
    -0.00019841269836756774, 0.008333333333330948, -0.16666666666666666};
static const double COS_F64[] = {
    -1.1382623647474604e-11, 2.087614614655861e-09, -2.7557317271145144e-07,
    2.480158729876456e-05, -0.0013888888888887398, 0.041666666666666664};
static const float SIN_F32[] = {
    2.7249896e-06f, -1.9840087e-04f, 8.333332e-03f, -1.6666667e-01f};
static const float COS_F32[] = {
    2.4547917e-05f, -1.3888302e-03f, 4.1666664e-02f};
static const double EXP_F64[] = {
    2.510038549551032e-08, 2.7620088445409746e-07, 2.7557268459997064e-06,
    2.4801521295954376e-05, 0.00019841269863053618, 0.0013888888917213717,
    0.008333333333330062, 0.04166666666662413, 0.16666666666666669, 0.5000000000000001};
static const double EXP_POW[] = {
    0.00019890990824673654, 0.0013933649996309251, 0.0083333109254809,
    0.041666464925285904, 0.16666666681623232, 0.500000001346581};
static const double LOG_F64[] = {
    0.14617807153417325, 0.15331611722055008, 0.1818289243253687, 0.22222211089379496,
    0.28571428626253836, 0.3999999999989889, 0.666666666666667};
static const double LOG_POW[] = {
    0.23331614471843498, 0.28550778633191964, 0.4000012221181065, 0.6666666655404201};
static const double LOG_FINE[] = {
    0.1291471218393509, 0.13285868837545742, 0.15385577463308145, 0.18181808210921882,
    0.22222222271326808, 0.2857142857133801, 0.4000000000000003};
static const double ATAN_F64[] = {
    1.806195461861215e-05, -0.00019996189377901382, 0.0010496035084968515,
    -0.0034958859739163094, 0.008368931178450162, -0.015535152475414177,
    0.023696731580048622, -0.031277189066996385, 0.03749486812535247, -0.04260356632601652,
    0.04737749579527779, -0.052579733342841106, 0.05881506877793656, -0.06666564699289104,
    0.07692298971033217, -0.09090908590891934, 0.11111111093490827, -0.14285714285384132,
    0.1999999999999753, -0.3333333333333333};
static const float ATAN_F32[] = {
    -2.3869972e-03f, 1.3507771e-02f, -3.587154e-02f, 6.250169e-02f, -8.65688e-02f,
    1.10337645e-01f, -1.4278568e-01f, 1.999974e-01f, -3.333333e-01f};
static const double ERF_F64[] = {
    5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08,
    -1.6350312701054695e-07, 1.6461000484121368e-06, -1.4925595266831182e-05,
    0.0001205533111164271, -0.000854832698083379, 0.0052239776248180145,
    -0.026866170645076792, 0.11283791670954879, -0.3761263890318375, 1.1283791670955126};
static const float ERF_F32[] = {
    -9.667045e-06f, 1.1265959e-04f, -8.4840803e-04f, 5.2210316e-03f, -2.686543e-02f,
    1.1283782e-01f, -3.7612638e-01f, 1.1283792e+00f};
static const double ERFC_F64[] = {
    -4.819971581991126e-09, -1.0096333797401699e-08, 3.5489820960622545e-08,
    9.725436494084162e-08, -1.3567738403155552e-07, -6.128754926539542e-07,
    3.5349863091448884e-07, 3.4704763768340144e-06, -7.303431788850293e-07,
    -2.0099922580094685e-05, 4.9492347360956755e-06, 0.0001250992136022878,
    -0.00010515976842654433, -0.0007798322535249472, 0.001888690357008306,
    0.0025293918146319454, -0.023770514918556238, 0.0683080273440331, -0.11927366341531172,
    0.12964515870275992, -0.04756229435345069, -0.13562110612458117, 1.2530080582697296};
static const double ERFC_SHORT[] = {
    -0.00018837973010599546, -0.0006870001554278415, 0.001962191644597672, 0.0025035076616362452,
    -0.023792936256371335, 0.06831118027903668, -0.11927086520232186, 0.1296449987621374,
    -0.047562417003055586, -0.13562110361474014, 1.2530080591298554};
static const float ERFC_F32[] = {
    -1.8837972e-04f, -6.8700017e-04f, 1.9621917e-03f, 2.5035078e-03f, -2.3792936e-02f,
    6.831118e-02f, -1.1927087e-01f, 1.29645e-01f, -4.7562417e-02f, -1.356211e-01f,
    1.253008e+00f};

/* c[0] z**(n - 1) + ... + c[n - 1] */
#define P3(c, z) (((c)[0] * (z) + (c)[1]) * (z) + (c)[2])
#define P4(c, z) (P3(c, z) * (z) + (c)[3])
#define P6(c, z) ((P4(c, z) * (z) + (c)[4]) * (z) + (c)[5])
#define P7(c, z) (P6(c, z) * (z) + (c)[6])
#define P8(c, z) (P7(c, z) * (z) + (c)[7])
#define P9(c, z) (P8(c, z) * (z) + (c)[8])
#define P10(c, z) (P9(c, z) * (z) + (c)[9])
#define P11(c, z) (P10(c, z) * (z) + (c)[10])
#define P13(c, z) ((P11(c, z) * (z) + (c)[11]) * (z) + (c)[12])
#define P20(c, z) (((((((P13(c, z) * (z) + (c)[13]) * (z) + (c)[14]) * (z) + (c)[15]) * (z) \
                  + (c)[16]) * (z) + (c)[17]) * (z) + (c)[18]) * (z) + (c)[19])
#define P23(c, z) (((P20(c, z) * (z) + (c)[20]) * (z) + (c)[21]) * (z) + (c)[22])

static inline uint32_t bits_f32(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float from_bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline uint64_t bits_f64(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
static inline double from_bits_f64(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

/* Adding it rounds to an integer, which is then in the low bits. */
#define MAGIC_F32 12582912.0f                   /* 1.5 * 2**23: its last nine bits are 0 */
#define MAGIC_EXP (MAGIC_F32 + 254.0f)          /* twice the exponent of 1 is added as well */
#define MAGIC_EIGHTHS (1572864.0f + 254.0f)     /* to an eighth; likewise */
#define MAGIC_F64 6755399441055744.0            /* 1.5 * 2**52 */

/* The rounding error of p = a * b. Without fused operations the factors are cut in halves (Dekker),
 * so neither may be above 2**996. */
static inline double product_error(double a, double b, double p) {
#if LEVEL > 0
    return __builtin_fma(a, b, -p);
#else
    double c = 134217729.0 * a, ah = c - (c - a), al = a - ah;
    double d = 134217729.0 * b, bh = d - (d - b), bl = b - bh;
    return al * bl - (((p - ah * bh) - al * bh) - ah * bl);
#endif
}

/* ---- float ---- */
/* (e**r - 1 - r) / r**2 for |r| < 0.35 (Cephes), of numbers and of vectors */
#define EXP_POLY_F32(r) (((((1.9875691500e-4f * (r) + 1.3981999507e-3f) * (r) + 8.3334519073e-3f) \
    * (r) + 4.1665795894e-2f) * (r) + 1.6666665459e-1f) * (r) + 5.0000001201e-1f)
/* e**x: x = n ln 2 + r, a polynomial in r (Cephes), the scale in two factors so that results
 * beyond the normal range come out as infinity or subnormal. */
static inline float exp_f32(float x) {
    float y = x > 89.0f ? 89.0f : x;
    y = y < -104.0f ? -104.0f : y;
    float t = y * 1.44269504088896341f + MAGIC_EXP;
    float n = t - MAGIC_EXP;
    float r = y - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = EXP_POLY_F32(r) * (r * r) + r + 1.0f;
    uint32_t both = bits_f32(t) << 23, half = (both >> 1) & 0x7f800000u;
    return p * from_bits_f32(half) * from_bits_f32(both - half);
}

/* log x: x = 2**k m with m near 1 (fdlibm's e_logf). */
static inline float log_f32(float x) {
    int tiny = x < 1.17549435e-38f;
    float y = tiny ? x * 8388608.0f : x;
    uint32_t u = bits_f32(y) + (0x3f800000u - 0x3f3504f3u);
    int32_t k = (int32_t)(u >> 23) - 127 - (tiny ? 23 : 0);
    float f = from_bits_f32((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float s = f / (2.0f + f), z = s * s, w = z * z;
    float t1 = w * (0.40000972152f + w * 0.24279078841f);
    float t2 = z * (0.66666662693f + w * 0.28498786688f);
    float h = 0.5f * f * f, dk = (float)k;
    float v = s * (h + (t1 + t2)) + dk * 9.0580006145e-06f - h + f + dk * 6.9313812256e-01f;
    v = x == 0.0f ? -INFINITY : v;
    v = x < 0.0f ? NAN : v;
    v = x == INFINITY ? x : v;
    return x != x ? x : v;
}

/* tanh |x| = t / (t + 2), t = e**|2 x| - 1 = 2**n (e**r - 1) + 2**n - 1; 1 from 9.02 on. */
static inline float tanh_f32(float x) {
    float a = fabsf(x), y = a > 9.1f ? 9.1f : a;
    float t = y * 2.88539008177792681f + MAGIC_F32;
    float n = t - MAGIC_F32;
    float r = 2.0f * y - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = EXP_POLY_F32(r) * (r * r) + r;
    float s = from_bits_f32((bits_f32(t) << 23) + 0x3f800000u);
    float v = p * s + (s - 1.0f);
    return copysignf(v / (v + 2.0f), x);
}

static inline float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

/* log(1 + x) and e**x - 1 with the rounding of 1 + x and of e**x taken back (Kahan). */
static inline float log1p_f32(float x) {
    float w = 1.0f + x, d = w - 1.0f;
    float v = log_f32(w) + (x - d) / w;
    v = w == 1.0f ? x : v;
    return x == INFINITY ? x : (w == 0.0f ? -INFINITY : v);
}
static inline float expm1_f32(float x) {
    /* |x| < 0.5: the Taylor series; beyond it e**x - 1 loses at most a bit or two */
    float p = 2.48015873e-5f;
    p = p * x + 1.98412698e-4f;
    p = p * x + 1.38888889e-3f;
    p = p * x + 8.33333333e-3f;
    p = p * x + 4.16666667e-2f;
    p = p * x + 1.66666667e-1f;
    p = p * x + 0.5f;
    float small = p * (x * x) + x, large = exp_f32(x) - 1.0f;
    return fabsf(x) < 0.5f ? copysignf(small, x) : large;         /* of -0, too */
}
static inline float softplus_f32(float x) {
    float m = x > 0.0f ? x : (x != x ? x : 0.0f);
    return m + log1p_f32(exp_f32(-fabsf(x)));
}

/* ---- double ---- */
/* x = n ln 2 + r with |r| < 0.35. */
static inline double ln2_rest(double x, int64_t *n) {
    double t = x * 1.4426950408889634 + MAGIC_F64, k = t - MAGIC_F64;
    *n = (int64_t)(bits_f64(t) - bits_f64(MAGIC_F64));
    return (x - k * 0x1.62e42fefp-1) - k * 0x1.473de6af278edp-34;
}
static inline double power_of_2(int64_t n) { return from_bits_f64((uint64_t)(n + 1023) << 52); }
/* n / 2, downwards, for |n| < 4096: there is no vector shift of signed 64-bit numbers in AVX2. */
static inline int64_t half_of(int64_t n) { return (int64_t)((uint64_t)(n + 8192) >> 1) - 4096; }

static inline double exp_f64(double x) {
    double y = x > 710.0 ? 710.0 : x;
    y = y < -746.0 ? -746.0 : y;
    int64_t n;
    double r = ln2_rest(y, &n), p = P10(EXP_F64, r) * (r * r) + r + 1.0;
    int64_t h = half_of(n);                     /* two factors: the result may be subnormal */
    return p * power_of_2(h) * power_of_2(n - h);
}

/* e**x - 1 = 2**n (e**r - 1) + 2**n - 1 */
static inline double expm1_f64(double x) {
    double y = x > 710.0 ? 710.0 : x;
    y = y < -60.0 ? -60.0 : y;
    int64_t n;
    double r = ln2_rest(y, &n), p = P10(EXP_F64, r) * (r * r) + r;
    int64_t h = half_of(n);
    double a = power_of_2(h), v = (p * a + (a - power_of_2(h - n))) * power_of_2(n - h);
    return n == 0 ? copysign(p, x) : v;         /* of -0, too */
}

/* x = 2**k m, m from sqrt(1/2) to sqrt(2): m - 1, for positive x. */
static inline double fraction_f64(double x, double *k) {
    int tiny = x < 2.2250738585072014e-308;
    double y = tiny ? x * 4503599627370496.0 : x;
    uint64_t u = bits_f64(y) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double e = from_bits_f64((u >> 52) + bits_f64(MAGIC_F64)) - MAGIC_F64;
    *k = e - (tiny ? 1075.0 : 1023.0);
    return from_bits_f64((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
}
/* log(1 + f) = 2 atanh(s) = 2 s + s z R(z), s = f / (2 + f), z = s * s (as fdlibm's e_log.c) */
static inline double log_f64(double x) {
    double k, f = fraction_f64(x, &k), s = f / (2.0 + f), z = s * s, h = 0.5 * f * f;
    double v = s * (h + z * P7(LOG_F64, z)) + k * 0x1.473de6af278edp-34 - h + f + k * 0x1.62e42fefp-1;
    v = x == 0.0 ? -INFINITY : v;
    v = x < 0.0 ? NAN : v;
    v = x == INFINITY ? x : v;
    return x != x ? x : v;
}
/* As log1p_f32. */
static inline double log1p_f64(double x) {
    double w = 1.0 + x, d = w - 1.0, v = log_f64(w) + (x - d) / w;
    v = w == 1.0 ? x : v;
    return x == INFINITY ? x : (w == 0.0 ? -INFINITY : v);
}
static inline double tanh_f64(double x) {
    double a = fabs(x), y = a > 20.0 ? 20.0 : a;
    int64_t n;                                  /* expm1_f64 with its scale in one factor */
    double r = ln2_rest(2.0 * y, &n), p = P10(EXP_F64, r) * (r * r) + r, s = power_of_2(n);
    double v = p * s + (s - 1.0);
    return copysign(v / (v + 2.0), x);
}
static inline double sigmoid_f64(double x) { return 1.0 / (1.0 + exp_f64(-x)); }
static inline double softplus_f64(double x) {
    double m = x > 0.0 ? x : (x != x ? x : 0.0);
    return m + log1p_f64(exp_f64(-fabs(x)));
}

/* ---- the remainder of a division, with the sign of x: exact, as fmod's ---- */
#define FMOD_IN_F64(x, y) (fabs(x) < fabs(y) * 4503599627370496.0 && fabs(y) < 1e300 && fabs(y) > 1e-280)
static inline double fmod_f64(double x, double y) {
    double n = trunc(x / y), p = n * y, r = (x - p) - product_error(n, y, p);
    double up = r + copysign(y, x);             /* the quotient may have been rounded up */
    return r != 0.0 && (r < 0.0) != (x < 0.0) ? up : copysign(r, x);
}
#define FMOD_IN_F32(x, y) (fabsf(x) < fabsf(y) * 268435456.0f && fabsf(y) < INFINITY)
static inline float fmod_f32(float x, float y) {
    double n = trunc((double)x / y), r = x - n * y, up = r + copysign((double)y, x);
    return copysignf((float)(r != 0.0 && (r < 0.0) != (x < 0.0f) ? up : r), x);
}

/* ---- sine and cosine: x = n pi/2 + r, |r| < pi/4, and the polynomial that n mod 4 wants.
 * The sine of r has its sign: of -0 the sum of the polynomial is 0 ---- */
typedef struct { double sine, cosine; uint64_t quarters; } waves_type_f64;
typedef struct { float sine, cosine; uint32_t quarters; } waves_type_f32;

#define SIN_IN_F64(x) (fabs(x) <= 1e6)          /* n times 33 bits of pi/2 is exact */
static inline waves_type_f64 waves_f64(double x) {
    double t = x * 0.6366197723675814 + MAGIC_F64, n = t - MAGIC_F64;
    double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    double z = r * r, s = r + r * (z * P6(SIN_F64, z));
    return (waves_type_f64){copysign(s, r), 1.0 - z * (0.5 - z * P6(COS_F64, z)), bits_f64(t) - bits_f64(MAGIC_F64)};
}
#define SIN_IN_F32(x) (fabsf(x) <= 4e8f)        /* n times 25 bits of pi/2 is exact in double */
static inline waves_type_f32 waves_f32(float x) {
    double t = x * 0.6366197723675814 + MAGIC_F64, n = t - MAGIC_F64;
    float r = (float)((x - n * 0x1.921fb5p+0) - n * 0x1.110b4611a6263p-26);
    float z = r * r, s = r + r * (z * P4(SIN_F32, z));
    return (waves_type_f32){copysignf(s, r), 1.0f - z * (0.5f - z * P3(COS_F32, z)),
                         (uint32_t)(bits_f64(t) - bits_f64(MAGIC_F64))};
}
/* The sine so many quarters of a turn further on: 0, or 1, the cosine. */
static inline double sine_f64(waves_type_f64 w, uint64_t on) {
    double v = (w.quarters + on) & 1 ? w.cosine : w.sine;
    return (w.quarters + on) & 2 ? -v : v;
}
static inline float sine_f32(waves_type_f32 w, uint32_t on) {
    float v = (w.quarters + on) & 1 ? w.cosine : w.sine;
    return (w.quarters + on) & 2 ? -v : v;
}

/* ---- arctangents: a polynomial up to 1; beyond, pi/2 less that of 1/x ---- */
static inline double atan_f64(double x) {
    double a = fabs(x), y = a > 1.0 ? 1.0 / a : a, z = y * y, v = y + y * (z * P20(ATAN_F64, z));
    v = a > 1.0 ? 1.5707963267948966 - (v - 6.123233995736766e-17) : v;
    return copysign(v, x);
}
static inline float atan_f32(float x) {
    float a = fabsf(x), y = a > 1.0f ? 1.0f / a : a, z = y * y, v = y + y * (z * P9(ATAN_F32, z));
    v = a > 1.0f ? 1.57079637f - (v + 4.37113883e-8f) : v;
    return copysignf(v, x);
}
static inline double atan2_f64(double y, double x) {
    double a = fabs(x), b = fabs(y), low = a < b ? a : b, high = a < b ? b : a;
    double q = high == 0.0 ? 0.0 : (low == INFINITY ? 1.0 : low / high), z = q * q;
    double v = q + q * (z * P20(ATAN_F64, z));
    v = b > a ? 1.5707963267948966 - (v - 6.123233995736766e-17) : v;
    v = copysign(1.0, x) < 0.0 ? 3.141592653589793 - (v - 1.2246467991473532e-16) : v;
    return x != x || y != y ? x + y : copysign(v, y);
}
/* In double: no float is lost in pi - v, and it needs no second part of pi. */
static inline float atan2_f32(float y, float x) {
    float a = fabsf(x), b = fabsf(y), low = a < b ? a : b, high = a < b ? b : a;
    float q = high == 0.0f ? 0.0f : (low == INFINITY ? 1.0f : low / high), z = q * q;
    double v = q + q * (z * P9(ATAN_F32, z));
    v = b > a ? 1.5707963267948966 - v : v;
    v = copysignf(1.0f, x) < 0.0f ? 3.141592653589793 - v : v;
    return x != x || y != y ? x + y : copysignf((float)v, y);
}

/* ---- the float in the middle of two, in the order of all floats, which is that of the whole numbers
 * of their bits, where negative ones are turned round; rounded down ---- */
#define HALFWAY(REAL, WHOLE, LEAST) { \
    WHOLE a, b, m; \
    memcpy(&a, &x, sizeof a); memcpy(&b, &y, sizeof b); \
    a = a < 0 ? LEAST - a : a; b = b < 0 ? LEAST - b : b; \
    m = (a & b) + ((a ^ b) >> 1); \
    m = m < 0 ? LEAST - m : m; \
    REAL found; \
    memcpy(&found, &m, sizeof m); \
    return x != x || y != y ? x + y : found; \
}
static inline double halfway_f64(double x, double y) HALFWAY(double, int64_t, INT64_MIN)
static inline float halfway_f32(float x, float y) HALFWAY(float, int32_t, INT32_MIN)

/* ---- error functions: erf(x) = x P(x**2) up to 1; erfc(x) = exp(-x**2) P((x - 3)/(x + 3)) / (1 + 2 x)
 * from 0.45 on (after Shepherd, Laframboise 1981), corrected for the rounding of x**2 ---- */
static inline double erfc_far_f64(double a) {
    double y = a > 28.0 ? 28.0 : a, s = y * y, lost = product_error(y, y, s);
    double t = (y - 3.0) / (y + 3.0), e = exp_f64(-s);
    return (e - e * lost) * P23(ERFC_F64, t) / (1.0 + 2.0 * y);
}
static inline double erf_f64(double x) {
    double a = fabs(x), z = x * x, near = x * P13(ERF_F64, z);
    return a < 1.0 ? near : (x != x ? x : copysign(1.0 - erfc_far_f64(a), x));
}
static inline double erfc_f64(double x) {
    double a = fabs(x), far = erfc_far_f64(a), near = 1.0 - x * P13(ERF_F64, x * x);
    far = x < 0.0 ? 2.0 - far : far;
    return a < 0.5 ? near : (x != x ? x : far);
}
/* One less this is erf of float: an error beside 1 is enough. */
static inline float erfc_about_f32(float a) {
    float y = a > 11.0f ? 11.0f : a, t = (y - 3.0f) / (y + 3.0f);
    return exp_f32(-y * y) * P11(ERFC_F32, t) / (1.0f + 2.0f * y);
}
static inline float erf_f32(float x) {
    float a = fabsf(x), z = x * x, near = x * P8(ERF_F32, z);
    return a < 1.0f ? near : (x != x ? x : copysignf(1.0f - erfc_about_f32(a), x));
}
static inline float erfc_f32(float x) {
    double a = fabsf(x), y = a > 11.0 ? 11.0 : a, t = (y - 3.0) / (y + 3.0);
    float far = (float)(exp_f64(-y * y) * P11(ERFC_SHORT, t) / (1.0 + 2.0 * y));
    float near = 1.0f - x * P8(ERF_F32, x * x);
    far = x < 0.0f ? 2.0f - far : far;
    return a < 0.5 ? near : (x != x ? x : far);
}

/* ---- x**y = e**(y log x) ---- */
/* In double, where 2**-33 of log x is enough. */
#define POW_IN_F32(x, y) (((x) > 0.0f && (x) < INFINITY && fabsf(y) < 1e9f) \
                          || (bits_f32(x) == 0 && (y) > 0.0f))
static inline float pow_f32(float x, float y) {
    double k, f = fraction_f64(x, &k), s = f / (2.0 + f), z = s * s;
    double l = s * (2.0 + z * P4(LOG_POW, z)) + k * 0.6931471805599453, w = y * l;
    w = w > 100.0 ? 100.0 : w;
    w = w < -120.0 ? -120.0 : w;
    int64_t n;
    double r = ln2_rest(w, &n), p = P6(EXP_POW, r) * (r * r) + r + 1.0;
    return x == 0.0f ? 0.0f : (float)(p * power_of_2(n));
}
/* log x as high + low with 65 bits or so: y log x may be 700. */
#define POW_IN_F64(x, y) (((x) > 0.0 && (x) < INFINITY && fabs(y) < 1e18) \
                          || (bits_f64(x) == 0 && (y) > 0.0))
static inline double pow_f64(double x, double y) {
    double k, f = fraction_f64(x, &k), g = 2.0 + f, s = f / g, m = s * g;
    /* s + t = f / (2 + f) */
    double t = (((f - m) - product_error(s, g, m)) - s * (f - (g - 2.0))) / g;
    double z = s * s, z_low = product_error(s, s, z) + 2.0 * s * t;
    /* s**3 (2/3 + z R): the first product with its rest, the factor too */
    double c = s * z, c_low = product_error(s, z, c) + s * z_low + t * z;
    double w = z * P7(LOG_FINE, z), d = 0x1.5555555555555p-1 + w;
    double d_low = (0x1.5555555555555p-1 - d) + w + 0x1.5555555555555p-55;
    double e = c * d, e_low = product_error(c, d, e) + c * d_low + c_low * d;
    /* k ln 2 + 2 s + e, the largest first */
    double a = k * 0x1.62e42fefp-1, b = 2.0 * s;
    double u = a + b, v = u - a, u_low = (a - (u - v)) + (b - v);
    double h = u + e;
    v = h - u;
    double h_low = (u - (h - v)) + (e - v);
    double low = u_low + h_low + (2.0 * t + e_low) + k * 0x1.473de6af278edp-34;
    double high = h + low;
    low = (h - high) + low;
    double p = y * high, p_low = product_error(y, high, p) + y * low;
    double q = p > 710.0 ? 710.0 : p;
    q = q < -746.0 ? -746.0 : q;
    p_low = q == p ? p_low : 0.0;
    int64_t n;
    double r = ln2_rest(q, &n);
    r += p_low;
    double o = P10(EXP_F64, r) * (r * r) + r + 1.0;
    int64_t half = half_of(n);
    return x == 0.0 ? 0.0 : o * power_of_2(half) * power_of_2(n - half);
}

/* ---- e**x of vectors (lanes.h) ---- */
#if LEVEL > 0
/* As EXP_POLY_F32, for |r| < 0.044; and 2**(j/8), twice: of 16 the last four bits of a number are one. */
#define EXP_SHORT_F32(r) (0.1666745f * (r) + 0.5000391f)
static const uint32_t ROOTS_OF_2[16] = {
    0x3f800000, 0x3f8b95c2, 0x3f9837f0, 0x3fa5fed7, 0x3fb504f3, 0x3fc5672a, 0x3fd744fd, 0x3feac0c7,
    0x3f800000, 0x3f8b95c2, 0x3f9837f0, 0x3fa5fed7, 0x3fb504f3, 0x3fc5672a, 0x3fd744fd, 0x3feac0c7};
#endif
#endif
