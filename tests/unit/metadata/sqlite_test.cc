#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "metadata/sqlite/sqlite_metadata.h"
#include "support/manual_runtime.h"
#include "unit/metadata/contract.h"

namespace mooncake::testing {
namespace {

namespace fs = std::filesystem;
using metadata::SqliteMetadata;
using ::testing::HasSubstr;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "mooncake-sqlite-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// A folder, and handles to a file in it under a clock that the test moves.
class SqliteWorld final : public MetadataWorld {
 public:
  std::unique_ptr<MetadataStore> Connect(const std::string& keyspace) override {
    auto store = SqliteMetadata::Open("sqlite://" + Path(), {keyspace}, runtime_);
    EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
    return store.ok() ? *std::move(store) : nullptr;
  }
  void Pass(uint64_t ms) override { runtime_.Advance(ms); }
  void Forget() override {
    for (const char* suffix : {"", "-wal", "-shm"}) fs::remove(Path() + suffix);
  }

  std::string Path() const { return folder_.File("deep/er/meta.db"); }
  ManualRuntime& runtime() { return runtime_; }

 private:
  ManualRuntime runtime_;
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Sqlite, MetadataContract,
                         Worlds("sqlite", [] { return std::make_unique<SqliteWorld>(); }));

LeaseRecord Named(const std::string& stable_id) {
  LeaseRecord record;
  record.id.stable_id = stable_id;
  return record;
}

class SqliteMetadataTest : public ::testing::Test {
 protected:
  SqliteWorld world_;
  std::unique_ptr<MetadataStore> store_ = world_.Connect("ks");
};

TEST_F(SqliteMetadataTest, RefusesOtherUrlsAndNamesAFolderItCannotMake) {
  for (const char* url : {"sqlite://", "sqlite:///", "sqlite://rel.db", "sqlite:/a.db", "/a.db"}) {
    EXPECT_EQ(SqliteMetadata::Open(url, {"ks"}, world_.runtime()).code(),
              ErrorCode::kInvalidArgument)
        << url;
  }
  auto store = SqliteMetadata::Open("sqlite:///dev/null/x/meta.db", {"ks"}, world_.runtime());
  ASSERT_EQ(store.code(), ErrorCode::kMetadata);
  EXPECT_THAT(store.error().context, HasSubstr("/dev/null/x"));
}

TEST_F(SqliteMetadataTest, ARecordSurvivesItsWriter) {
  ASSERT_TRUE(store_->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
  store_.reset();
  store_ = world_.Connect("ks");
  EXPECT_EQ(store_->Acquire(Named("n"), 60'000, std::nullopt, false).code(), ErrorCode::kConflict);
}

TEST_F(SqliteMetadataTest, HandlesMeetAgainAfterTheFileWasDeleted) {
  std::unique_ptr<MetadataStore> other = world_.Connect("ks");
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(store_->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
    ASSERT_EQ(other->ReadChanges(0).value_or({}).leases.size(), 1u);
    // Only the database: its log stays behind, and describes a file that is gone.
    fs::remove(world_.Path());
    ASSERT_TRUE(store_->Acquire(Named("a"), 60'000, std::nullopt, false).ok());
    Result<NodeId> id = other->Acquire(Named("b"), 60'000, std::nullopt, false);
    ASSERT_TRUE(id.ok()) << id.error().ToString();
    EXPECT_EQ(store_->ReadChanges(0).value_or({}).leases.size(), 2u);
    EXPECT_EQ(other->ReadChanges(0).value_or({}).leases.size(), 2u);
    EXPECT_EQ(world_.Connect("ks")->ReadChanges(0).value_or({}).leases.size(), 2u);
    world_.Forget();
  }
}

TEST_F(SqliteMetadataTest, GoesOnAfterTheFolderWasDeleted) {
  fs::remove_all(fs::path(world_.Path()).parent_path());
  EXPECT_TRUE(store_->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
}

TEST_F(SqliteMetadataTest, AFileThatIsNoDatabaseIsAnErrorThatNamesIt) {
  world_.Forget();
  std::ofstream(world_.Path()) << std::string(8192, 'x');
  Result<uint64_t> revision = store_->Poll();
  ASSERT_EQ(revision.code(), ErrorCode::kMetadata);
  EXPECT_THAT(revision.error().context, HasSubstr("meta.db"));
  world_.Forget();
  EXPECT_TRUE(store_->Poll().ok());
}

TEST_F(SqliteMetadataTest, AForkedChildIsRefusedAndHarmsNothing) {
  ASSERT_TRUE(store_->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = store_->Poll().code() == ErrorCode::kInvalidState;
    store_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(store_->ReadChanges(0).value_or({}).leases.size(), 1u);
}

// Each process opens the same new file and takes every name that it can get.
TEST_F(SqliteMetadataTest, ManyProcessesShareOneFile) {
  constexpr int kProcesses = 4;
  constexpr int kNames = 25;
  world_.Forget();
  int results[2];
  ASSERT_EQ(pipe(results), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    std::unique_ptr<MetadataStore> store = world_.Connect("ks");
    for (int name = 0; store != nullptr && name < kNames; ++name) {
      const LeaseRecord record = Named("n" + std::to_string(name));
      const auto id = store->Acquire(record, 60'000, std::nullopt, false);
      const char outcome = id.ok() ? 'w' : id.code() == ErrorCode::kConflict ? 'l' : 'x';
      if (write(results[1], &outcome, 1) != 1) break;
    }
    _exit(0);
  }
  close(results[1]);
  std::string outcomes;
  for (char outcome = 0; read(results[0], &outcome, 1) == 1;) outcomes += outcome;
  close(results[0]);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  EXPECT_EQ(outcomes.size(), size_t{kProcesses} * kNames);
  EXPECT_EQ(std::ranges::count(outcomes, 'w'), kNames);
  EXPECT_EQ(std::ranges::count(outcomes, 'x'), 0);
}

TEST_F(SqliteMetadataTest, AFileThatStaysLockedIsAnErrorInTime) {
  auto hasty = *SqliteMetadata::Open("sqlite://" + world_.Path(),
                                     {.keyspace = "ks", .busy_timeout_ms = 50}, world_.runtime());
  auto holder = *metadata::SqliteConnection::Open(world_.Path(), 50);
  holder->Exec("BEGIN IMMEDIATE");
  Result<NodeId> id = hasty->Acquire(Named("n"), 60'000, std::nullopt, false);
  ASSERT_EQ(id.code(), ErrorCode::kMetadata);
  EXPECT_THAT(id.error().context, HasSubstr("locked for 50 ms"));
  EXPECT_TRUE(hasty->Poll().ok());  // Readers do not wait.
  holder->Exec("COMMIT");
  EXPECT_TRUE(hasty->Acquire(Named("n"), 60'000, std::nullopt, false).ok());
}

}  // namespace
}  // namespace mooncake::testing
