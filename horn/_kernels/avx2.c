/* The loops for processors with AVX2. */
#include "tape.h"

#ifdef HORN_X86
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define LEVEL 1
#define BODY AVX2
#include "level.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
