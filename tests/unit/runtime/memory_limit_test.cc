#include "runtime/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace mooncake {
namespace {

namespace fs = std::filesystem;

// A /proc folder and mounted control groups, as files of the test's own.
class MemoryLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / "mc-limits-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    const fs::path path = folder_ + "/" + name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  // A mount of `kind` at `point` that shows the hierarchy from `root` on.
  void Mount(const std::string& kind, const std::string& root, const std::string& options) {
    Write("mountinfo",
          "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw\n"
          "32 31 0:29 " +
              root + " " + folder_ + "/mnt rw shared:9 - " + kind + " cgroup " + options + "\n");
  }
  std::vector<MemoryLimit> Limits() const { return MemoryLimits(folder_); }

  std::string folder_;
};

TEST_F(MemoryLimitTest, TheFirstVersionIsReadUpwards) {
  Mount("cgroup", "/", "rw,memory");
  Write("cgroup", "5:devices:/\n4:memory:/all/mine\n0::/\n");
  Write("mnt/memory.limit_in_bytes", "9223372036854771712\n");
  Write("mnt/all/memory.limit_in_bytes", "5000\n");
  Write("mnt/all/mine/memory.limit_in_bytes", "3000\n");
  Write("mnt/all/mine/memory.usage_in_bytes", "1000\n");
  Write("mnt/all/mine/memory.stat", "cache 900\ntotal_inactive_file 400\n");
  const auto limits = Limits();
  ASSERT_EQ(limits.size(), 2u);
  EXPECT_EQ(limits[0].bytes, 3000u);
  EXPECT_EQ(limits[0].used, 600u);
  EXPECT_EQ(limits[0].file, folder_ + "/mnt/all/mine/memory.limit_in_bytes");
  EXPECT_EQ(limits[1].bytes, 5000u);
}

TEST_F(MemoryLimitTest, TheSecondVersionIsRead) {
  Mount("cgroup2", "/", "rw");
  Write("cgroup", "0::/mine\n");
  Write("mnt/memory.max", "max\n");
  Write("mnt/mine/memory.max", "3000\n");
  Write("mnt/mine/memory.current", "10\n");
  Write("mnt/mine/memory.stat", "inactive_file 400\n");
  const auto limits = Limits();
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_EQ(limits[0].bytes, 3000u);
  EXPECT_EQ(limits[0].used, 0u);
}

TEST_F(MemoryLimitTest, AContainersMountBeginsAtItsGroup) {
  Mount("cgroup2", "/pod/one", "rw");
  Write("mnt/memory.max", "3000\n");
  for (const char* group : {"/pod/one", "/pod/one2", "/", "/../elsewhere"}) {
    Write("cgroup", std::string("0::") + group + "\n");
    ASSERT_EQ(Limits().size(), 1u) << group;
    EXPECT_EQ(Limits()[0].file, folder_ + "/mnt/memory.max");
  }
}

TEST_F(MemoryLimitTest, NoGroupNoLimit) {
  EXPECT_TRUE(Limits().empty());
  Write("cgroup", "nonsense\n0::/mine\n");
  Write("mountinfo", "32 31\n\n - cgroup2\n");
  EXPECT_TRUE(Limits().empty());
}

TEST(CheckMemoryLimits, NamesTheLimitThatIsExceeded) {
  const std::vector<MemoryLimit> limits = {{"/inner", 5000, 2000}, {"/outer", 4000, 3500}};
  EXPECT_TRUE(CheckMemoryLimits(4000, LimitCheck::kEver, limits).ok());
  EXPECT_TRUE(CheckMemoryLimits(500, LimitCheck::kNow, limits).ok());
  const Status ever = CheckMemoryLimits(4001, LimitCheck::kEver, limits);
  EXPECT_EQ(ever.code(), ErrorCode::kNoSpace);
  EXPECT_EQ(
      ever.error().context,
      "4001 bytes are more than the memory limit of 4000 bytes in /outer allows; raise it, or "
      "ask for less");
  const Status now = CheckMemoryLimits(501, LimitCheck::kNow, limits);
  EXPECT_EQ(now.error().context,
            "501 bytes are more than the memory limit of 4000 bytes, of which 3500 are used, in "
            "/outer allows; raise it, or ask for less");
  EXPECT_FALSE(CheckMemoryLimits(UINT64_MAX, LimitCheck::kNow, limits).ok());
}

}  // namespace
}  // namespace mooncake
