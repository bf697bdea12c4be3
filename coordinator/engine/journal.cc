#include "coordinator/engine/journal.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace muster {

void MergeChanges(DurableChanges more, DurableChanges* changes) {
  if (changes->empty()) {
    *changes = std::move(more);
    return;
  }
  std::map<std::string, size_t> position;
  for (size_t i = 0; i < changes->records.size(); ++i) position[changes->records[i].key] = i;
  for (DurableRecord& record : more.records) {
    const auto known = position.find(record.key);
    if (known == position.end()) {
      changes->records.push_back(std::move(record));
    } else {
      changes->records[known->second] = std::move(record);
    }
  }
  std::move(more.ledger.begin(), more.ledger.end(), std::back_inserter(changes->ledger));
  changes->forgotten_jobs.insert(changes->forgotten_jobs.end(), more.forgotten_jobs.begin(),
                                 more.forgotten_jobs.end());
  changes->durability = std::max(changes->durability, more.durability);
}

}  // namespace muster
