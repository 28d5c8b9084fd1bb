/* Products of float32 for processors with AVX2. */
#include "products.h"

#ifdef HORN_X86
#include <immintrin.h>
#include <math.h>

#include "target_avx2.h"
#define LEVEL 1
#define WIDE WIDE_AVX2
#include "wide.h"
#include "target_end.h"
#endif
