#pragma once
// How the tests were compiled: limits on time hold for an optimised build without instrumentation only.

namespace tileoverlap::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

#if defined(__OPTIMIZE__)
inline constexpr bool kTimed = !kSanitized;
#else
inline constexpr bool kTimed = false;
#endif

}  // namespace tileoverlap::testing
