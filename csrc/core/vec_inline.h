// Functions of *.simd.cpp files are inlined always: see core/simd.h on copies that the linker may share.
#pragma once

#if defined(_MSC_VER)
#define XMC_INLINE __forceinline
#else
#define XMC_INLINE inline __attribute__((always_inline))
#endif
