/* Products of float32 for processors with AVX-512. */
#include "products.h"

#ifdef HORN_X86
#include <immintrin.h>
#include <math.h>

#include "target_avx512.h"
#define LEVEL 2
#define WIDE WIDE_AVX512
#include "wide.h"
#include "target_end.h"
#endif
