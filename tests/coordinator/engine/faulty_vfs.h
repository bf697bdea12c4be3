// A file layer of SQLite whose writes and syncs fail when told to, and that knows what a power cut
// would leave: of each file, what it held at its last sync. Not thread-safe.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string>

namespace muster {

class FaultyVfs {
 public:
  // Registers itself under its name for as long as it lives.
  FaultyVfs();
  ~FaultyVfs();
  FaultyVfs(const FaultyVfs&) = delete;
  const std::string& name() const { return name_; }

  // Lets `after` writes pass, then one fails with this code of SQLite.
  void FailWrite(int64_t after, int code) {
    writes_left_ = after;
    write_code_ = code;
  }
  void FailNextSync() { fail_sync_ = true; }
  // Every write finds a full disk while this file is there.
  void FullWhileThereIs(const std::string& path) { full_while_ = path; }
  bool failed() const { return failed_; }
  // Synced contents go there, from now on.
  void KeepSyncedIn(const std::string& folder) { synced_ = folder; }

 private:
  struct File;
  static int Open(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out);
  static int Delete(sqlite3_vfs* vfs, const char* path, int sync_folder);
  int BeforeWrite();
  int OnSync(const std::string& path);

  sqlite3_vfs* const base_;
  const std::string name_;
  sqlite3_vfs vfs_;
  int64_t writes_left_ = -1;
  int write_code_ = SQLITE_OK;
  bool fail_sync_ = false, failed_ = false;
  std::string full_while_, synced_;
};

}  // namespace muster
