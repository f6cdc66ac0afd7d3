#include "obs/process_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace mooncake::obs {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

uint64_t CountEntries(const char* folder) {
  std::error_code error;
  uint64_t count = 0;
  std::filesystem::directory_iterator it(folder, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) ++count;
  return count;
}

}  // namespace

ProcessUsage ReadProcessUsage() {
  ProcessUsage usage;
  rusage times{};
  if (getrusage(RUSAGE_SELF, &times) == 0) {
    usage.cpu_seconds = Seconds(times.ru_utime) + Seconds(times.ru_stime);
  }
  uint64_t total_pages = 0;
  uint64_t resident_pages = 0;
  if (std::ifstream("/proc/self/statm") >> total_pages >> resident_pages) {
    usage.resident_bytes = resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  usage.open_fds = CountEntries("/proc/self/fd");
  if (usage.open_fds > 0) --usage.open_fds;  // The one that reads the folder.
  usage.threads = CountEntries("/proc/self/task");
  return usage;
}

}  // namespace mooncake::obs
