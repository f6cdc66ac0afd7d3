// Result<T> and Status: how every fallible call in the store reports.
//
// A Result holds a value or an Error; a Status is a Result without a value. Both are
// [[nodiscard]], so a failure cannot be dropped by accident. The shape follows
// std::expected, which GCC 12 does not offer in C++20. The library throws nothing.
//
//   Result<uint64_t> size = store.GetSize("key");
//   if (!size) std::cerr << size.error().ToString();
//
// Values of this header are plain data: safe to copy between threads, not to share unlocked.
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace mooncake {

// What went wrong. The number is the value that Python callers see (docs/protocol.md has the
// table: meaning, whether a retry can help).
enum class ErrorCode : int32_t {
  kOk = 0,
  kNotFound = -1,          // No such key, segment or node; also "unspecified".
  kInvalidState = -2,      // Not allowed now: closed, draining, wrong lifecycle state.
  kMetadata = -3,          // The metadata service failed or refused.
  kTransport = -4,         // A peer did not answer in time or the connection broke.
  kConflict = -5,          // Somebody else won, or a quota is exhausted.
  kStaleEpoch = -6,        // The caller or the named owner is an older incarnation.
  kUnsupported = -7,       // Known, but not available in this build or mode.
  kBackPressure = -9,      // Busy; try again later.
  kChecksum = -10,         // The bytes are not those that were put.
  kTooSmall = -11,         // The destination cannot hold the value.
  kInvalidArgument = -22,  // The call itself is wrong: names the argument and what is allowed.
  kNoSpace = -200,         // No storage left and nothing could be evicted.
};

// The constant's name without the k: "NotFound".
std::string_view ErrorName(ErrorCode code);

// Finer than the code: why a value was missed or a call failed, for counters and diagnosis. Nothing
// is decided by it, and kUnspecified is always a right answer.
enum class ErrorReason : uint8_t {
  kUnspecified,
  kEvicted,     // The key had a value, which made room for others.
  kOwnerDead,   // The node that holds the value, or answers for the key, is gone or cannot be
                // reached.
  kTimeout,     // A peer was silent for the stall limit, or the call's limit passed.
  kOtherScope,  // The key has a value under another tenant, domain or object_set.
  kTooLarge,    // No segment of the cluster is as large as the value.
  kOverQuota,   // The tenant's quota has no room for it.
};

struct Error {
  ErrorCode code = ErrorCode::kOk;
  std::string context;  // One sentence for a person; names arguments, values and limits.
  ErrorReason reason = ErrorReason::kUnspecified;

  std::string ToString() const;  // "NotFound: context"
};

template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(runtime/explicit)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  T& value() & { return assert(ok()), *std::get_if<0>(&state_); }
  const T& value() const& { return assert(ok()), *std::get_if<0>(&state_); }
  T&& value() && { return assert(ok()), std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T value_or(T other) const& { return ok() ? value() : std::move(other); }

  // REQUIRES: !ok().
  const Error& error() const& { return assert(!ok()), *std::get_if<1>(&state_); }
  Error&& error() && { return assert(!ok()), std::move(*std::get_if<1>(&state_)); }
  ErrorCode code() const { return ok() ? ErrorCode::kOk : error().code; }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(runtime/explicit)

  bool ok() const { return error_.code == ErrorCode::kOk; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: !ok().
  const Error& error() const& { return assert(!ok()), error_; }
  Error&& error() && { return assert(!ok()), std::move(error_); }
  ErrorCode code() const { return error_.code; }

 private:
  Error error_;
};

using Status = Result<void>;

inline Status Ok() { return {}; }

// Makers, so that an error is one line where it arises: `return NotFound(fmt::format(...))`.
Error NotFound(std::string context);
Error InvalidState(std::string context);
Error MetadataError(std::string context);
Error TransportError(std::string context);
Error Conflict(std::string context);
Error StaleEpoch(std::string context);
Error Unsupported(std::string context);
Error BackPressure(std::string context);
Error ChecksumMismatch(std::string context);
Error TooSmall(std::string context);
Error InvalidArgument(std::string context);
Error NoSpace(std::string context);

}  // namespace mooncake

#define MC_CONCAT_INNER_(a, b) a##b
#define MC_CONCAT_(a, b) MC_CONCAT_INNER_(a, b)

// MC_TRY(Type name, expression): binds the value, or returns the error from this function.
#define MC_TRY(declaration, ...)                                \
  auto MC_CONCAT_(mc_result_, __LINE__) = (__VA_ARGS__);        \
  if (!MC_CONCAT_(mc_result_, __LINE__).ok()) {                 \
    return std::move(MC_CONCAT_(mc_result_, __LINE__)).error(); \
  }                                                             \
  declaration = *std::move(MC_CONCAT_(mc_result_, __LINE__))

// MC_RETURN_IF_ERROR(expression): returns the error of a Status or Result, else goes on.
#define MC_RETURN_IF_ERROR(...)                               \
  do {                                                        \
    auto mc_status = (__VA_ARGS__);                           \
    if (!mc_status.ok()) return std::move(mc_status).error(); \
  } while (false)
