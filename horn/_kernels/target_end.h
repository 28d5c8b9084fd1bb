/* The end of what a target_*.h began. GCC's goes to the end of the file, and nothing follows it. */
#if defined(__clang__)
#pragma clang attribute pop
#endif
