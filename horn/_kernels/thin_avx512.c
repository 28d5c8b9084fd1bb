/* Gradients of thin batches with their updates, and products with live weights, for processors with
 * AVX-512. */
#include "products.h"

#ifdef HORN_X86
#include <immintrin.h>

#include "target_avx512.h"
#define LEVEL 2
#define THIN_UPDATE thin_update_avx512
#include "thin.h"
#include "live.h"
#include "target_end.h"
#endif
