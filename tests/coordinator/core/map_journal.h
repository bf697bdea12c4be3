// A journal that is a map in memory, as durable.h describes it.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/durable.h"

namespace muster {

struct MapJournal {
  std::map<std::string, std::string> records;
  std::map<std::tuple<int64_t, LedgerKind, int64_t>, std::string> ledger;

  void Write(const DurableChanges& changes) {
    for (const int64_t job : changes.forgotten_jobs) {
      const std::string key = absl::StrCat("job/", job);
      std::erase_if(records, [&](const auto& record) {
        return record.first == key || absl::StartsWith(record.first, key + "/");
      });
      std::erase_if(ledger, [&](const auto& row) { return std::get<0>(row.first) == job; });
    }
    for (const DurableRecord& record : changes.records) {
      if (record.value.has_value()) {
        records[record.key] = *record.value;
      } else {
        records.erase(record.key);
      }
    }
    for (const LedgerRow& row : changes.ledger) ledger[{row.job, row.kind, row.index}] = row.value;
  }

  DurableState Load() const {
    DurableState state;
    for (const auto& [key, value] : records) state.records.push_back({key, value});
    for (const auto& [where, value] : ledger) {
      const auto& [job, kind, index] = where;
      state.ledger.push_back({job, kind, index, value});
    }
    return state;
  }
};

}  // namespace muster
