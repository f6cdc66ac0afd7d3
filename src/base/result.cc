#include "mooncake/result.h"

namespace mooncake {

std::string_view ErrorName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk: return "Ok";
    case ErrorCode::kNotFound: return "NotFound";
    case ErrorCode::kInvalidState: return "InvalidState";
    case ErrorCode::kMetadata: return "Metadata";
    case ErrorCode::kTransport: return "Transport";
    case ErrorCode::kConflict: return "Conflict";
    case ErrorCode::kStaleEpoch: return "StaleEpoch";
    case ErrorCode::kUnsupported: return "Unsupported";
    case ErrorCode::kBackPressure: return "BackPressure";
    case ErrorCode::kChecksum: return "Checksum";
    case ErrorCode::kTooSmall: return "TooSmall";
    case ErrorCode::kInvalidArgument: return "InvalidArgument";
    case ErrorCode::kNoSpace: return "NoSpace";
  }
  // Codes also arrive from peers, which may be newer than this build.
  return "Unknown";
}

std::string Error::ToString() const {
  std::string text(ErrorName(code));
  if (!context.empty()) text.append(": ").append(context);
  return text;
}

Error NotFound(std::string context) { return {ErrorCode::kNotFound, std::move(context)}; }
Error InvalidState(std::string context) { return {ErrorCode::kInvalidState, std::move(context)}; }
Error MetadataError(std::string context) { return {ErrorCode::kMetadata, std::move(context)}; }
Error TransportError(std::string context) { return {ErrorCode::kTransport, std::move(context)}; }
Error Conflict(std::string context) { return {ErrorCode::kConflict, std::move(context)}; }
Error StaleEpoch(std::string context) { return {ErrorCode::kStaleEpoch, std::move(context)}; }
Error Unsupported(std::string context) { return {ErrorCode::kUnsupported, std::move(context)}; }
Error BackPressure(std::string context) { return {ErrorCode::kBackPressure, std::move(context)}; }
Error ChecksumMismatch(std::string context) { return {ErrorCode::kChecksum, std::move(context)}; }
Error TooSmall(std::string context) { return {ErrorCode::kTooSmall, std::move(context)}; }
Error InvalidArgument(std::string context) {
  return {ErrorCode::kInvalidArgument, std::move(context)};
}
Error NoSpace(std::string context) { return {ErrorCode::kNoSpace, std::move(context)}; }

}  // namespace mooncake
