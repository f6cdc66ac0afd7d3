// Log port. Lines go to stderr (never stdout) or a file through spdlog; the level comes from the
// configuration. Misses log nothing. LogRateLimited keeps a fault from flooding: the first
// line of a kind goes out at once, then at most one a second, with the count of the rest. Lines of
// all kinds together are limited too (RateLimiter).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mooncake/result.h"

namespace mooncake::obs {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
// Lines are appended to this file from now on; missing folders are made. kInvalidArgument: it
// cannot be opened, and nothing changes.
Status SetLogFile(const std::string& path);
void Log(LogLevel level, std::string_view text);
// `kind` is a short constant, for example "transport.connect"; it is part of the line.
void LogRateLimited(LogLevel level, std::string_view kind, std::string_view text);

inline void LogInfo(std::string_view text) { Log(LogLevel::kInfo, text); }
inline void LogWarning(std::string_view text) { Log(LogLevel::kWarning, text); }
inline void LogError(std::string_view text) { Log(LogLevel::kError, text); }

}  // namespace mooncake::obs
