/* The life of a layer: slots, acknowledgements, verdict, poison, death, recovery. README.md says which step is which
 * function. One step has at most one store or compare-and-swap that another process can see; looks that may be merged
 * without loss are merged, and say why.
 *
 * Sizes: R ranks, S slots, P pieces, E epochs. CANCEL: each bit a rank that cancels, CANCELS times each. FAIL: each bit
 * a rank in which something fails. DEATH: each bit a rank that may die; ZOMBIE: it goes on for a while before. MUTANT
 * breaks one thing; spin must find it.
 */
#ifndef R
#define R 2
#endif
#ifndef S
#define S 1
#endif
#ifndef P
#define P 2
#endif
#ifndef E
#define E 2
#endif
#ifndef CANCEL
#define CANCEL 0
#endif
#ifndef CANCELS
#define CANCELS 1
#endif
#ifndef FAIL
#define FAIL 0
#endif
#ifndef DEATH
#define DEATH 0
#endif
#ifndef ZOMBIE
#define ZOMBIE 0
#endif
#ifndef E2
#define E2 1 /* epochs after a recovery */
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

/* Mutants: numbers as in model.py. */
#define IGNORE_ONE_ACK 1
#define ACK_EARLY 2
#define NO_PASS_OVER 3
#define VERDICT_STORED 4
#define SAME_REGION 5
#define DONE_AFTER_ACK 6
#define READY_FIRST 7
#define POISON_STORED 8
#define SLOTS_KEPT 9
#define NO_DRAIN 10
#define NO_RETURN_WAIT 11
#define WISH_UNREAD 12
#define DEATH_UNSEEN 13
#define NO_POISON_LOOK 14
#define ZOMBIE_SEAT 15
#define SKIP_FORGOTTEN 16
#define WISH_UNSEEN 17
#define LOOK_ONCE 18
#define WISH_SINGLE 19
#define WISH_PASSED 20
#define NO_HELP 21

#if FAIL || DEATH
#define G 2
#else
#define G 1
#endif
#if DEATH
#define M 2 /* slots: those of the first rank 0, those of its successor */
#else
#define M 1
#endif

#define OPEN 1
#define DONE 2
#define CANCELLED 3
#define V(e, what) ((e) * 4 + (what))
#define FAILED 0
#define CLAIMED 1
#define POISONED 2
#define NOBODY 255

#if DEATH /* a process ends between any two steps */
#define MORTAL unless { killed && g == 0 && me == victim }
#define A_THREAD_MORTAL unless { killed && me == victim }
#else
#define MORTAL
#define A_THREAD_MORTAL
#endif
#if MUTANT == SAME_REGION
#define region(g) 0
#else
#define region(g) (g)
#endif
#define N(g, r) ((g) * R + (r))
#define L(g, s) (region(g) * S + (s))
#define A(g, r, s) ((region(g) * R + (r)) * S + (s))
#define Q(g, r) (region(g) * R + (r))
#define content(g, e, p) (((g) * E + (e) - 1) * P + (p) + 1)

/* The control region of each generation. */
byte current[G];       /* active_epoch */
byte verdict[G];       /* V(epoch, what) */
byte poison[G];        /* 0, CLAIMED, POISONED */
byte cause[G] = NOBODY;
byte producer_done[G];
byte ready_seq[G * S];
byte ready_epoch[G * S];
byte ready_number[G * S];
byte ack[G * R * S];
byte done_epoch[G * R]; /* consumer_done_epoch */
byte returned[G * R];   /* wait_returned_epoch */
#if CANCEL
byte wish[R]; /* cancel_wish */
#if MUTANT == WISH_SINGLE
#define wishes(i, e) (wish[i] == (e))
#else
#define wishes(i, e) ((wish[i] >> (e)) & 1)
#endif
#if MUTANT == WISH_UNSEEN
#define anybody_wishes(e) 0
#elif R == 2
#define anybody_wishes(e) (wishes(0, e) || wishes(1, e))
#else
#define anybody_wishes(e) (wishes(0, e) || wishes(1, e) || wishes(2, e))
#endif
#if MUTANT == SKIP_FORGOTTEN
#define NOT_LEFT true
#else
#define NOT_LEFT seen > returned[Q(g, me)]
#endif
#endif

/* The slots' bytes: which piece of which layer they are. */
byte bytes[M * S];

/* Inside a rank's process, between its threads. */
byte job[G * R];      /* the epoch handed to the consumer; 0: none is in work */
bit closing[G * R];
bit gone[G * R];      /* its consumer's thread has ended */
byte submitted[G * R], landed[G * R]; /* pieces of this layer on their way to the device, and arrived */
byte right[G * R];    /* of those, the ones that were the right bytes, in order */

/* What happened: not in the code. */
bit created[2];
byte victim = NOBODY; /* taken for dead; it may go on for a while: a zombie */
bit killed;          /* and now it does not any more */
byte ended;           /* ranks that have done all epochs of the first generation */
bit over;
byte outcome[G * (E + 1)];
byte told[G] = NOBODY;
#if CANCEL
bit granted[E + 1];   /* cancel said: it is given up */
#endif
bit finished[2 * R];  /* its caller has come to its end */

#define lives(g, r) (!((g) == 0 && victim == (r)))
#define is_cancelled(g, e) (verdict[region(g)] == V(e, CANCELLED))
#define slots_of(g) ((M == 2 && (g) == 1 && victim == 0 && MUTANT != SLOTS_KEPT) -> 1 : 0)
#define acked(g, i, s) (ack[A(g, i, s)] >= ready_seq[L(g, s)])
#if MUTANT == NO_POISON_LOOK
#define broken(g, e) (is_cancelled(g, e))
#else
#define broken(g, e) (poison[region(g)] != 0 || is_cancelled(g, e))
#endif

/* Acknowledgements only grow: to see all at once is to see one after the other. */
#if MUTANT == IGNORE_ONE_ACK
#define all_acked(g, s) (acked(g, 0, s) && (R < 3 || acked(g, 1, s)))
#elif R == 2
#define all_acked(g, s) (acked(g, 0, s) && acked(g, 1, s))
#else
#define all_acked(g, s) (acked(g, 0, s) && acked(g, 1, s) && acked(g, 2, s))
#endif
#if R == 2
#define all_returned(g, e) (returned[Q(g, 0)] >= (e) && returned[Q(g, 1)] >= (e))
#else
#define all_returned(g, e) (returned[Q(g, 0)] >= (e) && returned[Q(g, 1)] >= (e) && returned[Q(g, 2)] >= (e))
#endif
/* At most two copies are on their way. */
#define in_flight(g, r, s) (submitted[N(g, r)] > landed[N(g, r)] && (landed[N(g, r)] % S == (s) || \
  (submitted[N(g, r)] - landed[N(g, r)] == 2 && (landed[N(g, r)] + 1) % S == (s))))
/* The same for the two counters of a wait. */
#define is_done(g, r, e) (done_epoch[Q(g, r)] >= (e) && \
  (producer_done[region(g)] >= (e) || verdict[region(g)] == V(e, DONE)))

inline note(g, e, what) {
  assert(outcome[(g) * (E + 1) + (e)] == 0 || outcome[(g) * (E + 1) + (e)] == what);
  outcome[(g) * (E + 1) + (e)] = what
}

/* wait returns: every piece is on this rank's device, once, in order, of this layer and generation. */
inline succeed(g, r, e) {
  if
  :: lives(g, r) ->
     assert(right[N(g, r)] == P);
     note(g, e, DONE);
#if CANCEL
     assert(g != 0 || !granted[e])
#endif
  :: else
  fi
}

inline land(g, r, e) {
  if
  :: bytes[slots_of(g) * S + landed[N(g, r)] % S] == content(g, e, landed[N(g, r)]) &&
     right[N(g, r)] == landed[N(g, r)] -> right[N(g, r)]++
  :: else
  fi;
  landed[N(g, r)]++
}

/* The writer fills a slot. */
inline fill(g, e, p) {
  i = 0;
  do
  :: i < R ->
     assert(!lives(g, 0) || !lives(g, i) || acked(g, i, p % S)); /* it is this rank's to overwrite */
     assert(!lives(g, 0) || !lives(g, i) || job[N(g, i)] == 0 || !in_flight(g, i, p % S));
     i++
  :: else -> i = 0; break
  od;
  bytes[slots_of(g) * S + p % S] = content(g, e, p)
}

/* ControlBlock::poison: the first wins, the others are told its cause. */
inline fail(g, who) {
#if MUTANT == POISON_STORED
  if
  :: poison[region(g)] == 0 -> poison[region(g)] = CLAIMED; cause[region(g)] = who; poison[region(g)] = POISONED
  :: else
  fi
#else
  if
  :: atomic { poison[region(g)] == 0 -> poison[region(g)] = CLAIMED };
     atomic { assert(cause[region(g)] == NOBODY || region(g) != g); cause[region(g)] = who };
     poison[region(g)] = POISONED
  :: atomic { poison[region(g)] != 0 }
  fi
#endif
}

/* What is raised. A claimer that died before it wrote the cause is waited for 10 ms, then nobody is named. */
inline raise(g) {
  if
  :: atomic { poison[region(g)] == POISONED ->
       assert(told[g] == NOBODY || told[g] == cause[region(g)]);
       told[g] = cause[region(g)] }
  :: poison[region(g)] == CLAIMED
  fi
}

/* A rank's consumer and its device. A copy lands when the consumer sees that it has: nobody can tell that it did
 * earlier, and the later, the longer must its slot be left alone. */
proctype Consumer(byte g; byte me) {
  byte e, s, seq;
  byte taken[S];
  {
    true;
loop:
    if
    :: atomic { job[N(g, me)] != 0 && !closing[N(g, me)] ->
         e = job[N(g, me)]; submitted[N(g, me)] = 0; landed[N(g, me)] = 0; right[N(g, me)] = 0 }
    :: atomic { closing[N(g, me)] -> goto out }
    fi;
#if MUTANT != NO_PASS_OVER
    do /* pass_over */
    :: atomic { s < S && (ready_seq[L(g, s)] == 0 || ready_epoch[L(g, s)] >= e) -> s++ }
    :: atomic { s < S && ready_seq[L(g, s)] != 0 && ready_epoch[L(g, s)] < e ->
         seq = ready_seq[L(g, s)]; taken[s] = seq };
       atomic {
         if
         :: ack[A(g, me, s)] < seq -> ack[A(g, me, s)] = seq
         :: else
         fi;
         seq = 0; s++ }
    :: atomic { s == S -> s = 0; break }
    od;
#endif
    do
    :: atomic { broken(g, e) || closing[N(g, me)] -> break }
    :: atomic { landed[N(g, me)] == P -> break }
    :: atomic { landed[N(g, me)] < submitted[N(g, me)] -> land(g, me, e);
         s = (landed[N(g, me)] - 1) % S;
#if MUTANT != DONE_AFTER_ACK
         if
         :: landed[N(g, me)] == P -> done_epoch[Q(g, me)] = e /* complete */
         :: else
         fi
#endif
       };
#if MUTANT == ACK_EARLY
       atomic { s = 0 }
#elif MUTANT == DONE_AFTER_ACK
       ack[A(g, me, s)] = taken[s];
       atomic { s = 0;
         if
         :: landed[N(g, me)] == P -> done_epoch[Q(g, me)] = e
         :: else
         fi }
#else
       atomic { ack[A(g, me, s)] = taken[s]; s = 0 }
#endif
       /* is_ready: the cells are this rank's to read until it acknowledges, so one look at all of them will do */
    :: atomic { submitted[N(g, me)] < P && submitted[N(g, me)] - landed[N(g, me)] < S &&
         ready_seq[L(g, submitted[N(g, me)] % S)] > taken[submitted[N(g, me)] % S] &&
         ready_epoch[L(g, submitted[N(g, me)] % S)] >= e ->
         s = submitted[N(g, me)] % S;
         /* else it refuses: "expected piece 1 of epoch 2, found piece 0 of epoch 1" */
         assert(!lives(g, me) || (ready_epoch[L(g, s)] == e && ready_number[L(g, s)] == submitted[N(g, me)]));
         taken[s] = ready_seq[L(g, s)];
#if MUTANT == ACK_EARLY
         ack[A(g, me, s)] = taken[s];
#endif
         submitted[N(g, me)]++; s = 0 }
    od;
#if MUTANT == NO_DRAIN
    atomic { job[N(g, me)] = 0 };
#endif
    do /* drain */
    :: atomic { landed[N(g, me)] < submitted[N(g, me)] -> land(g, me, e) }
    :: atomic { landed[N(g, me)] == submitted[N(g, me)] -> job[N(g, me)] = 0; goto loop }
    od;
out:
    gone[N(g, me)] = 1
  } MORTAL
}

/* join of rank 0. */
inline lead() {
#if CANCEL && MUTANT != WISH_PASSED
  do /* what was given up and is not joined here: another rank may be waiting for it */
  :: atomic { g == 0 && i < E && !(i > current[0] && i < e && anybody_wishes(i)) -> i++ }
  :: atomic { g == 0 && i < E && i > current[0] && i < e && anybody_wishes(i) -> skip };
     if
     :: atomic { all_returned(g, current[0]) -> skip }
     :: atomic { poison[0] != 0 -> i = 0; goto failed }
     fi;
     verdict[0] = V(i, CANCELLED);
     current[0] = i;
     atomic { returned[Q(g, me)] = i; i = 0 }
  :: atomic { g != 0 || i == E -> i = 0; break }
  od;
#endif
  if
#if MUTANT == NO_RETURN_WAIT
  :: true
#else
  :: atomic { all_returned(g, current[region(g)]) -> skip }
  :: atomic { poison[region(g)] != 0 -> goto failed }
#endif
  fi;
  verdict[region(g)] = V(e, OPEN);
  current[region(g)] = e;
#if CANCEL && MUTANT != WISH_UNREAD
  do /* who gave it up before it was published has left a wish */
  :: atomic { g == 0 && i < R ->
       if
       :: wishes(i, e) && verdict[0] == V(e, OPEN) -> verdict[0] = V(e, CANCELLED)
       :: else
       fi;
       i++ }
  :: atomic { g != 0 || i == R -> i = 0; break }
  od
#endif
}

/* join of another rank. Without a cancel it has never anything to skip. */
inline follow() {
#if CANCEL
  do
  :: atomic { current[region(g)] == e -> break }
  :: atomic { current[region(g)] != e -> seen = current[region(g)];
       assert(!lives(g, me) || seen < e) }; /* else it poisons: "rank 1 joined epoch 1, rank 0 is in epoch 2" */
     if
     :: atomic { seen > joined && NOT_LEFT -> open = anybody_wishes(seen) }; /* wished */
        if
        :: atomic { verdict[region(g)] == V(seen, CANCELLED) || verdict[region(g)] == V(seen, DONE) ->
             returned[Q(g, me)] = seen; seen = 0; open = 0; goto look_again }
        :: atomic { verdict[region(g)] == V(seen, FAILED) -> seen = 0; open = 0; goto failed }
        :: atomic { verdict[region(g)] == V(seen, OPEN) -> /* else it poisons: "joined epoch 2, rank 0 is in epoch 1" */
             assert(!lives(g, me) || open);
             open = 0 };
#if MUTANT != NO_HELP
           atomic { /* compare-and-swap: it is given up, whoever is about to say so */
             if
             :: verdict[region(g)] == V(seen, OPEN) -> verdict[region(g)] = V(seen, CANCELLED)
             :: else
             fi;
             seen = 0; goto look_again }
#endif
        :: atomic { else -> assert(!lives(g, me)); seen = 0; open = 0; goto failed } /* of another epoch: never */
        fi
     :: atomic { !(seen > joined && NOT_LEFT) -> skip }
     fi;
     if
     :: atomic { current[region(g)] != seen -> seen = 0 }
     :: atomic { poison[region(g)] != 0 -> seen = 0; goto failed }
     fi;
look_again:
     skip
  od
#else
  if
  :: atomic { current[region(g)] >= e -> skip }
  :: atomic { poison[region(g)] != 0 -> goto failed }
  fi
#endif
}

/* A rank's caller: join, run (rank 0), wait; recover. */
proctype Rank(byte g; byte me) {
  byte e, p, s, i, seq, seen, joined, epochs;
  bit open;
  {
    true;
again:
    atomic {
      e = 1; seq = 0; joined = 0; s = 0; seen = 0; open = 0; i = 0;
      epochs = (g == 0 -> E : E2);
      run Consumer(g, me)
    };
    do
    :: atomic { e > epochs -> break }
#if CANCEL
       /* it never entered a layer that it knows to be given up: it goes on to the next */
    :: atomic { g == 0 && e < epochs && granted[e] && (me != 0 || current[0] < e) -> e++ }
#endif
    :: atomic { e <= epochs -> skip };
       if
       :: me == 0 -> lead()
       :: else -> follow()
       fi;
       /* begin; a consumer that is past its last acknowledgement ends by itself */
       atomic { job[N(g, me)] == 0 ->
         
#if CANCEL
         joined = e;
#endif
         job[N(g, me)] = e };
       if
       :: me == 0 -> /* run */
          p = 0;
          do
#if DEATH
          :: atomic { p < P && all_acked(g, p % S) && !broken(g, e) -> skip };
             atomic { fill(g, e, p) };
#else
          :: atomic { p < P && all_acked(g, p % S) && !broken(g, e) -> fill(g, e, p) };
#endif
             if
             :: atomic { broken(g, e) -> goto ending }
#if MUTANT == READY_FIRST
             :: atomic { !broken(g, e) -> seq++; ready_seq[L(g, p % S)] = seq };
                atomic { ready_epoch[L(g, p % S)] = e; ready_number[L(g, p % S)] = p; p++ }
#else
             :: atomic { !broken(g, e) -> ready_epoch[L(g, p % S)] = e; ready_number[L(g, p % S)] = p };
                atomic { seq++; ready_seq[L(g, p % S)] = seq; p++ }
#endif
             fi
          :: atomic { p == P && all_acked(g, 0) && all_acked(g, S - 1) -> p = 0; break }
          :: atomic { broken(g, e) -> goto ending }
          od;
          /* close_layer */
#if MUTANT == VERDICT_STORED
          if
          :: verdict[region(g)] == V(e, OPEN) -> verdict[region(g)] = V(e, DONE)
#else
          if
          :: atomic { verdict[region(g)] == V(e, OPEN) -> verdict[region(g)] = V(e, DONE) }
#endif
          :: atomic { verdict[region(g)] != V(e, OPEN) -> assert(verdict[region(g)] != V(e, DONE)); goto ending }
          fi;
          producer_done[region(g)] = e
       :: else
       fi;
ending:
       /* wait; the producer's errors end as its own do. Its looks are here in any order, not done before poison. */
       if
       :: atomic { is_done(g, me, e) -> succeed(g, me, e) }
       :: atomic { poison[region(g)] != 0 -> p = 0;
#if MUTANT == LOOK_ONCE
            assert(!lives(g, me) || outcome[g * (E + 1) + e] != DONE);
            goto failed
#else
            if
            :: verdict[region(g)] == V(e, DONE) ->
               assert(!lives(g, me) || done_epoch[Q(g, me)] >= e); /* a complete layer stays complete */
               succeed(g, me, e)
            :: verdict[region(g)] == V(e, OPEN) -> verdict[region(g)] = V(e, FAILED); goto failed
            :: else -> goto failed
            fi
#endif
          }
       :: atomic { poison[region(g)] == 0 && is_cancelled(g, e) -> p = 0; note(g, e, CANCELLED) };
          atomic { job[N(g, me)] == 0 -> /* give_up: nothing of it moves any more */
            assert(landed[N(g, me)] == submitted[N(g, me)]) }
       fi;
       atomic { returned[Q(g, me)] = e; e++ }
    od;
    /* all epochs done; whoever is told of a failure by its next call recovers with the others */
    if
    :: g == 0 && G == 2 ->
       atomic { ended++;
         if
         :: ended == R && poison[0] == 0 && victim == NOBODY -> over = 1
         :: else
         fi };
       if
       :: over
       :: atomic { poison[0] != 0 && !over -> goto failed }
       fi
    :: else
    fi;
    goto out;
failed:
    assert(g == 0 || !lives(1, me)); /* nothing fails in the new generation */
    raise(g);
    atomic { p = 0; s = 0; i = 0; seen = 0; open = 0; seq = 0; closing[N(g, me)] = 1 };
    atomic { gone[N(g, me)] -> skip };
#if G == 2
#if MUTANT != ZOMBIE_SEAT
    if
    :: victim == me -> goto out /* its seat has been taken */
    :: else
    fi;
#endif
    goto join_next;
out:
    atomic { closing[N(g, me)] = 1 };
    gone[N(g, me)] -> goto end_of_it;
join_next:
    atomic { g = 1 }; /* the old generation is left: its region is nobody's */
    if
    :: me == 0 -> atomic {
#if MUTANT == SAME_REGION
         current[0] = 0; verdict[0] = 0; poison[0] = 0; cause[0] = NOBODY; producer_done[0] = 0;
         i = 0;
         do
         :: i < S -> ready_seq[i] = 0; ready_epoch[i] = 0; ready_number[i] = 0; i++
         :: else -> break
         od;
         i = 0;
         do
         :: i < R * S -> ack[i] = 0; i++
         :: else -> break
         od;
         i = 0;
         do
         :: i < R -> done_epoch[i] = 0; returned[i] = 0; i++
         :: else -> i = 0; break
         od;
#endif
         created[1] = 1 }
    :: else -> created[1]
    fi;
    goto again;
#else
    goto end_of_it;
out:
    atomic { closing[N(g, me)] = 1 };
    gone[N(g, me)];
#endif
end_of_it:
    atomic { finished[g * R + me] = 1 }
  } MORTAL
}

#if DEATH
/* The process that takes the dead one's seat: a new rank 0 makes the new region, another one waits for it. */
proctype Successor(byte me) {
  if
  :: me == 0 -> created[1] = 1
  :: else -> created[1]
  fi;
  run Rank(1, me)
}

/* Somebody dies, once, at any moment; it is a zombie first, for as long as it likes. */
proctype Fate() {
  byte who = 0;
  do
  :: who < R && !over && ((DEATH >> who) & 1) ->
     atomic {
       if
#if ZOMBIE
       :: !over -> victim = who; run Successor(who)
#else
       :: !over -> victim = who; killed = 1; run Successor(who)
#endif
       :: else -> goto lucky
       fi };
     killed = 1;
     break
  :: who < R -> who++
  :: else -> break
  od;
lucky:
  skip
}

/* Liveness of each rank: the kernel says that a peer is gone. The dying rank may itself be about to fail. */
proctype Watch(byte me) {
  {
    if
    :: victim != NOBODY ->
       if
#if MUTANT != DEATH_UNSEEN
       :: victim != me && !gone[N(0, me)] -> fail(0, victim)
       :: gone[N(0, me)]
#else
       :: victim != me
#endif
       :: victim == me -> fail(0, me)
       :: victim == me
       fi
    :: over
    fi
  } A_THREAD_MORTAL
}
#endif

#if FAIL
/* A writer, a device, a limit: something fails in this rank, at any moment, or not. */
proctype Failure(byte me) {
  if
  :: atomic { !over && !gone[N(0, me)] -> skip }; fail(0, me)
  :: true
  fi
}
#endif

#if CANCEL
/* Any rank, any thread, any epoch, any moment. */
proctype Cancel(byte me) {
  byte e, times;
  {
    do
    :: times < CANCELS ->
       times++;
       if
       :: e = 1
       :: E > 1 -> e = E
       :: goto out
       fi;
       if
       :: atomic { current[0] < e -> skip };
          atomic {
#if MUTANT == WISH_SINGLE
            wish[me] = e
#else
            wish[me] = wish[me] | (1 << e)
#endif
          }
       :: atomic { current[0] >= e -> skip }
       fi;
       if
       :: atomic { current[0] < e -> granted[e] = 1; assert(outcome[e] != DONE) }
       :: atomic { current[0] >= e -> skip };
#if MUTANT == VERDICT_STORED
          if
          :: verdict[0] == V(e, OPEN) ->
             atomic { verdict[0] = V(e, CANCELLED); granted[e] = 1; assert(outcome[e] != DONE) }
          :: else
          fi
#else
          atomic {
            if
            :: verdict[0] == V(e, OPEN) -> verdict[0] = V(e, CANCELLED); granted[e] = 1; assert(outcome[e] != DONE)
            :: else
            fi
          }
#endif
       fi
    :: else -> break
    od;
out:
    skip
  } A_THREAD_MORTAL
}
#endif

init {
  atomic {
    byte r = 0;
    created[0] = 1;
    do
    :: r < R ->
       run Rank(0, r);
#if DEATH
       run Watch(r);
#endif
#if CANCEL
       if
       :: (CANCEL >> r) & 1 -> run Cancel(r)
       :: else
       fi;
#endif
#if FAIL
       if
       :: (FAIL >> r) & 1 -> run Failure(r)
       :: else
       fi;
#endif
       r++
    :: else -> r = 0; break
    od;
#if DEATH
    run Fate()
#endif
  }
}

#ifdef ENDS
/* Every rank's caller comes to its end, in one generation or the other, or its process dies. */
#define ended_or_dead(r) (finished[r] || finished[R + (r)] || (killed && victim == (r)))
#if R == 2
ltl ends { <> (ended_or_dead(0) && ended_or_dead(1)) }
#else
ltl ends { <> (ended_or_dead(0) && ended_or_dead(1) && ended_or_dead(2)) }
#endif
#endif
